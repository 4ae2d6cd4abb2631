"""Models of transformers: sparsify serves them as they are, and their checkpoints stay sparse."""

import copy
import json
import os
import pickle
import re
import weakref
from pathlib import Path

import pytest

import sparse_autotune as sa

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import architectures
from architectures import BLOCK, DENSITY, MODELS, mask, run, sparse_of
from safetensors.torch import load_file, save_file
from transformers.quantizers import auto

import sparse_autotune.transformers
from sparse_autotune.transformers import SparseAutotuneConfig, checkpoints, mark

DOCUMENT = Path(__file__).resolve().parents[3] / "docs/guide/sparse-model-from-a-dense-one.md"
Llama = transformers.LlamaForCausalLM


@pytest.fixture(autouse=True)
def quiet():
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


@pytest.fixture
def folders(tmp_path):
    return str(tmp_path / "dense"), str(tmp_path / "sparse")


def config(**more):
    return SparseAutotuneConfig(**{"block": BLOCK, "density": DENSITY, **more})


def identical(one, other):
    one, other = one.state_dict(), other.state_dict()
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert tensor.dtype == other[name].dtype and torch.equal(tensor, other[name]), name


def llama(folder, **more):
    """A dense checkpoint, its model and inputs."""
    model, inputs = architectures.make("Llama", **more)
    model.save_pretrained(folder)
    return model, inputs


def load(kind, folder, **more):
    """A model, and what transformers says of the keys of its checkpoint."""
    model, info = kind.from_pretrained(folder, output_loading_info=True, **more)
    return model, {name: found for name, found in info.items() if found}


def saved_sparse(folders, **more):
    """A sparse checkpoint, its model and inputs."""
    dense, sparse = folders
    _, inputs = llama(dense)
    model = Llama.from_pretrained(dense, quantization_config=config(**more))
    model.save_pretrained(sparse)
    return model, inputs


@pytest.mark.parametrize("name", MODELS)
def test_a_sparse_model_agrees_with_the_dense_one_that_is_masked_by_its_blocks(name):
    dense, inputs = architectures.make(name)
    sparse, report = sparse_of(dense)
    before = run(dense, inputs)
    mask(dense, report)
    expected, got = run(dense, inputs), run(sparse, inputs)
    scale = expected.abs().max()
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-5 * float(scale))
    assert (before - expected).abs().max() > 1e-3 * scale  # the blocks that went were of use


@pytest.mark.parametrize("name", MODELS)
def test_a_checkpoint_made_sparse_while_it_loads_is_what_sparsify_makes_and_comes_back_bit_for_bit(
    name, folders
):
    dense, sparse = folders
    model, inputs = architectures.make(name)
    kind = type(model)
    model.save_pretrained(dense)
    loaded, complaints = load(kind, dense, quantization_config=config(exclude=[]))
    assert not complaints
    made, report = sparse_of(kind.from_pretrained(dense))
    identical(loaded, made)
    assert loaded.hf_quantizer.report.replaced.keys() == report.replaced.keys()
    loaded.save_pretrained(sparse, max_shard_size="30KB")
    assert len(list(Path(sparse).glob("*.safetensors"))) > 3
    again, complaints = load(kind, sparse)
    assert not complaints
    identical(again, loaded)
    assert torch.equal(run(again, inputs), run(loaded, inputs))


@pytest.mark.parametrize("name", ["Llama", "T5", "Mamba", "GPT-2"])
def test_half_precision_comes_back_with_the_layers_that_stay_in_float32(name, folders):
    dense, sparse = folders
    model, inputs = architectures.make(name)
    kind, dtype = type(model), torch.float16 if name == "T5" else torch.bfloat16
    model.save_pretrained(dense)
    loaded = kind.from_pretrained(dense, dtype=dtype, quantization_config=config(exclude=[]))
    identical(loaded, sparse_of(kind.from_pretrained(dense, dtype=dtype))[0])
    layers = loaded.hf_quantizer.report.replaced
    wide = {path for path, layer in layers.items() if layer.values.dtype == torch.float32}
    assert wide == {path for path in layers if name == "T5" and path.endswith(".wo")}
    assert {layer.values.dtype for path, layer in layers.items() if path not in wide} == {dtype}
    loaded.save_pretrained(sparse)
    again = kind.from_pretrained(sparse, dtype=dtype)
    identical(again, loaded)
    assert torch.equal(run(again, inputs), run(loaded, inputs))


def test_one_dense_weight_is_in_memory_at_a_time(folders, monkeypatch):
    llama(folders[0])
    seen, alive, take = [], [], checkpoints.SparseAutotuneQuantizer.take

    def counted(quantizer, name, weight):
        seen.append(weakref.ref(weight))
        alive.append(sum(ref() is not None for ref in seen))
        return take(quantizer, name, weight)

    monkeypatch.setattr(checkpoints.SparseAutotuneQuantizer, "take", counted)
    Llama.from_pretrained(folders[0], quantization_config=config())
    assert len(seen) == 14 and max(alive) <= 2 and all(ref() is None for ref in seen)


@pytest.mark.parametrize("saved", [False, True])
def test_a_model_has_no_memory_before_its_tensors_are_read(folders, monkeypatch, saved):
    saved_sparse(folders)
    seen, prepare = [], checkpoints.SparseAutotuneQuantizer._process_model_before_weight_loading

    def looked(quantizer, model, **words):
        prepare(quantizer, model, **words)
        seen.append({name: (t.device.type, tuple(t.shape)) for name, t in model.state_dict().items()})

    monkeypatch.setattr(checkpoints.SparseAutotuneQuantizer, "_process_model_before_weight_loading", looked)
    model = Llama.from_pretrained(folders[saved], quantization_config=None if saved else config())
    assert {device for device, _ in seen[0].values()} == {"meta"}
    if saved:  # in the sizes that it will have
        assert {n: shape for n, (_, shape) in seen[0].items()} == {
            n: tuple(t.shape) for n, t in model.state_dict().items()
        }


def test_layers_are_chosen_by_name_and_the_head_stays_dense_unless_it_is_asked_for(folders):
    llama(folders[0])

    def sparse(**more):
        model = Llama.from_pretrained(folders[0], quantization_config=config(**more))
        return {name for name, layer in model.named_modules() if isinstance(layer, sa.SparseLinear)}

    inner = sparse()
    assert len(inner) == 14 and "lm_head" not in inner
    assert sparse(exclude=[]) == inner | {"lm_head"}
    up = {f"model.layers.{i}.mlp.up_proj" for i in (0, 1)}
    assert sparse(include="*.up_proj") == up and sparse(exclude=["*.up_proj", "lm_head"]) == inner - up
    small = {f"model.layers.{i}.self_attn.{k}_proj" for i in (0, 1) for k in "kv"}
    assert sparse(smallest=3) == inner - small
    with pytest.raises(ValueError, match=r"no layer was made sparse: 0 layers are sparse, 15 are left dense"):
        sparse(block=512)


def test_hooks_that_a_class_registers_go_along(folders):
    calls = []

    class Hooked(Llama):
        def __init__(self, given):
            super().__init__(given)
            self.model.layers[0].mlp.up_proj.register_forward_hook(lambda *_: calls.append(1))

    _, inputs = saved_sparse(folders)
    for folder, more in ((folders[0], {"quantization_config": config()}), (folders[1], {})):
        calls.clear()
        run(Hooked.from_pretrained(folder, **more), inputs)
        assert calls == [1]


@pytest.mark.parametrize("include", [None, "*.q_proj", "*.k_proj", "*.gate_proj"])
@pytest.mark.parametrize("while_loading", [False, True])
def test_layers_that_are_fused_on_disk_are_sparse_one_by_one(include, while_loading, folders):
    dense, sparse = folders
    kind = transformers.NomicBertModel
    given = {**architectures.SIZES, **architectures.FEED}
    kind(transformers.NomicBertConfig(**given)).save_pretrained(dense)
    fused = "encoder.layers.0.attn.Wqkv.weight"
    assert fused in load_file(Path(dense) / "model.safetensors")
    if while_loading:
        model = kind.from_pretrained(dense, quantization_config=config(density=0.3, include=include))
    else:
        model = kind.from_pretrained(dense)
        sa.sparsify(model, BLOCK, 0.3, include=include)
    made = sa.sparsify(kind.from_pretrained(dense), BLOCK, 0.3, include=include)
    identical(model, made)
    model.save_pretrained(sparse)
    assert (fused in load_file(Path(sparse) / "model.safetensors")) == (include == "*.gate_proj")
    again, complaints = load(kind, sparse)
    assert not complaints
    identical(again, model)


def test_a_new_model_is_saved_as_one_that_was_loaded(folders):
    kind = transformers.GteModel  # has fused layers, and a prefix that only some checkpoints have
    model = sa.sparsify(kind(kind.config_class(**architectures.SIZES, **architectures.FEED)), BLOCK, 0.3)
    model.save_pretrained(folders[1])
    names = set(load_file(Path(folders[1]) / "model.safetensors"))
    assert not any(name.startswith("new.") or "qkv" in name for name in names)
    again, complaints = load(kind, folders[1])
    assert not complaints
    identical(again, model)
    again._weight_conversions = []  # as of a checkpoint of which nothing was converted
    again.save_pretrained(folders[0])
    assert not any("qkv" in name for name in load_file(Path(folders[0]) / "model.safetensors"))


def test_a_threshold_may_leave_layers_without_blocks(folders):
    model, inputs = saved_sparse(folders, threshold=1e9)
    layer = model.model.layers[0].mlp.up_proj
    assert layer.col_idx.shape[0] == 0 and layer.weight.shape == (128, 64)
    again = Llama.from_pretrained(folders[1])
    identical(again, model)
    assert torch.equal(run(again, inputs), run(model, inputs))


def test_a_class_with_a_head_and_one_without_read_the_same_checkpoint(folders, tmp_path):
    model, inputs = saved_sparse(folders)
    base, complaints = load(transformers.LlamaModel, folders[1])
    assert complaints == {"unexpected_keys": {"lm_head.weight"}}
    identical(base, model.model)
    base.save_pretrained(tmp_path / "base")
    headed, complaints = load(Llama, tmp_path / "base")
    assert complaints == {"missing_keys": {"lm_head.weight"}}
    identical(headed.model, model.model)
    assert torch.equal(run(base, inputs), run(headed.model, inputs))
    with pytest.raises(ValueError, match="BertModel has none of the 14 sparse layers of this checkpoint"):
        transformers.BertModel.from_pretrained(folders[1])


def test_without_the_import_a_checkpoint_is_refused_and_what_to_import_is_named(folders, monkeypatch, caplog):
    saved_sparse(folders)
    monkeypatch.delitem(auto.AUTO_QUANTIZATION_CONFIG_MAPPING, checkpoints.METHOD)
    monkeypatch.delitem(auto.AUTO_QUANTIZER_MAPPING, checkpoints.METHOD)
    transformers.logging.set_verbosity_warning()
    monkeypatch.setattr(transformers.logging.get_logger("transformers"), "propagate", True)
    with pytest.raises(RuntimeError, match="ignore_mismatched_sizes"):
        Llama.from_pretrained(folders[1])
    assert "Unknown quantization type, got sparse_autotune.transformers" in caplog.text
    assert re.search(r"up_proj\.weight +\| .*MISMATCH", caplog.text)


BROKEN = {
    "values are missing": (
        lambda s, p: s.pop(p + "values"),
        ValueError,
        "no values of model.layers.0.mlp.up",
    ),
    "columns are missing": (
        lambda s, p: s.pop(p + "col_idx"),
        ValueError,
        "no col_idx of model.layers.0.mlp",
    ),
    "a column is out of range": (lambda s, p: s[p + "col_idx"].fill_(99), ValueError, r"col_idx\[0\] is 99"),
    "a block is missing": (
        lambda s, p: s.update({p + "values": s[p + "values"][1:].clone()}),
        RuntimeError,
        "ignore_mismatched_sizes",
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_checkpoint_is_refused(what, folders):
    saved_sparse(folders)
    change, error, words = BROKEN[what]
    file = Path(folders[1]) / "model.safetensors"
    state = load_file(file)
    change(state, "model.layers.0.mlp.up_proj.")
    save_file(state, file, metadata={"format": "pt"})
    with pytest.raises(error, match=words):
        Llama.from_pretrained(folders[1])


@pytest.mark.parametrize(
    "entry, words",
    [
        ({"block": [16, 16]}, "stored_blocks"),
        (
            {"block": [16, 16], "stored_blocks": 99},
            "stored_blocks is 99; expected 0 to 32 for a weight of 128x64",
        ),
        ({"block": [0, 16], "stored_blocks": 1}, "block is"),
    ],
)
def test_a_broken_configuration_is_refused(entry, words, folders):
    saved_sparse(folders)
    file = Path(folders[1]) / "config.json"
    saved = json.loads(file.read_text())
    saved["quantization_config"]["layers"]["model.layers.0.mlp.up_proj"] = entry
    file.write_text(json.dumps(saved))
    with pytest.raises(ValueError, match=r"layers\['model.layers.0.mlp.up_proj'\].*" + words):
        Llama.from_pretrained(folders[1])


def test_a_weight_of_another_shape_is_what_transformers_makes_of_it(folders):
    llama(folders[0])
    other = transformers.LlamaConfig(**{**architectures.GROUPED, "intermediate_size": 64})
    words = {"config": other, "quantization_config": config()}
    with pytest.raises(RuntimeError, match="ignore_mismatched_sizes"):
        Llama.from_pretrained(folders[0], **words)
    model = Llama.from_pretrained(folders[0], ignore_mismatched_sizes=True, **words)
    layer = model.model.layers[0].mlp.up_proj  # a new one, which is sparse too
    assert isinstance(layer, sa.SparseLinear) and layer.weight.shape == (64, 64)
    assert 0 < layer.values.abs().max() < 1


def test_a_configuration_says_what_is_wrong_with_it():
    for words, error, text in (
        ({"block": 0}, ValueError, "block is 0"),
        ({"density": 2}, ValueError, "density is 2"),
        ({"smallest": -1}, ValueError, "smallest is -1"),
        ({"include": 5}, TypeError, "include is 5; expected a name or names"),
        ({"exclude": lambda name, layer: True}, TypeError, "exclude is .*; expected a name or names"),
        ({"quant_method": "gptq"}, ValueError, "quant_method is 'gptq'"),
        ({"dense": 3}, TypeError, "dense"),
    ):
        with pytest.raises(error, match=text):
            SparseAutotuneConfig(**words)
    made = config(include="a.*", exclude=("b", "c"))
    assert (made.block, made.include, made.exclude) == ([16, 16], ["a.*"], ["b", "c"])
    assert SparseAutotuneConfig.from_dict(json.loads(made.to_json_string())) == made


def test_sparsify_marks_a_model_so_that_it_can_be_saved(folders):
    dense, sparse = folders
    model, inputs = llama(dense)
    sa.sparsify(model, block=BLOCK, include="*.mlp.*")
    sa.sparsify(model, block=8, include="*.q_proj")
    model.save_pretrained(sparse)
    again, complaints = load(Llama, sparse)
    assert not complaints and len(again.config.quantization_config.layers) == 8
    identical(again, model)
    assert again.model.layers[0].self_attn.q_proj.block == (8, 8)
    again.model.layers[1].mlp = copy.deepcopy(again.model.layers[0].mlp)  # what is saved is what is there
    again.model.layers[0].mlp.up_proj = again.model.layers[0].mlp.up_proj.to_dense()
    again.save_pretrained(sparse)
    third, complaints = load(Llama, sparse)
    assert not complaints and len(third.config.quantization_config.layers) == 7
    identical(third, again)


def test_layers_that_were_put_in_by_hand_are_marked_by_hand(folders):
    dense, sparse = folders
    model, inputs = llama(dense)
    with pytest.raises(ValueError, match="model has no SparseLinear"):
        mark(model)
    with pytest.raises(TypeError, match="model is a Linear; expected a transformers.PreTrainedModel"):
        mark(torch.nn.Linear(2, 2))
    mlp = model.model.layers[1].mlp
    mlp.up_proj = sa.SparseLinear.from_dense(mlp.up_proj, (8, 16), 0.25, activation="relu")
    assert mark(model) is model
    model.save_pretrained(sparse)
    again = Llama.from_pretrained(sparse)
    identical(again, model)
    assert again.model.layers[1].mlp.up_proj.activation == "relu"
    assert torch.equal(run(again, inputs), run(model, inputs))
    mlp.gate_proj = copy.deepcopy(mlp.up_proj)
    mlp.gate_proj.values = mlp.up_proj.values
    with pytest.raises(ValueError, match="up_proj shares its values with .*gate_proj"):
        model.save_pretrained(sparse)
    model.hf_quantizer = object()
    with pytest.raises(ValueError, match="model is quantized by object already"):
        mark(model)
    with pytest.warns(UserWarning, match="save_pretrained cannot save the sparse layers: model is quantized"):
        sa.sparsify(model, block=BLOCK)


@pytest.mark.parametrize("name", ["Llama", "GPT-2", "Falcon"])
def test_dequantize_gives_the_dense_layers_back(name, folders):
    dense, sparse = folders
    model, inputs = architectures.make(name)
    kinds = {path: type(module) for path, module in model.named_modules()}
    model.save_pretrained(dense)
    loaded = type(model).from_pretrained(dense, quantization_config=config())
    before = run(loaded, inputs)
    loaded.dequantize()
    assert {path: type(module) for path, module in loaded.named_modules()} == kinds
    torch.testing.assert_close(run(loaded, inputs), before, rtol=1e-5, atol=1e-5)
    loaded.save_pretrained(sparse)
    assert "quantization_config" not in json.loads((Path(sparse) / "config.json").read_text())
    again, complaints = load(type(model), sparse)
    assert not complaints
    identical(again, loaded)


def test_a_loaded_model_trains_converts_copies_and_generates(folders):
    _, inputs = saved_sparse(folders)
    model = Llama.from_pretrained(folders[1])
    words = inputs["input_ids"]
    expected = run(model, inputs)
    assert torch.equal(run(copy.deepcopy(model), inputs), expected)
    assert torch.equal(run(pickle.loads(pickle.dumps(model)), inputs), expected)
    assert model.half().model.layers[0].mlp.up_proj.values.dtype == torch.float16
    model.float().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(5):
        loss = model(**inputs, labels=words).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    model.eval()
    assert model.generate(words, max_new_tokens=3, do_sample=False).shape == (2, 11)
    model.save_pretrained(folders[1])
    identical(Llama.from_pretrained(folders[1]), model)


def test_a_loaded_model_compiles_without_a_break():
    dense, inputs = architectures.make("T5")  # which reads wo.weight.dtype
    model, _ = sparse_of(dense)
    block = model.encoder.block[0].layer[1]
    x = torch.randn(2, 5, 64)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(block, fullgraph=True, backend="aot_eager")(x), block(x))


def test_layers_on_the_disk_are_refused(folders):
    quantizer = checkpoints.SparseAutotuneQuantizer(config(), pre_quantized=False)
    with pytest.raises(ValueError, match="device_map has layers on the disk"):
        quantizer.validate_environment(device_map={"model": "cpu", "lm_head": "disk"})
    quantizer.validate_environment(device_map={"": "cpu"})


def test_a_device_map_counts_the_blocks_that_are_kept(folders):
    model, _ = architectures.make("Llama")
    quantizer = checkpoints.SparseAutotuneQuantizer(config(density=0.25), pre_quantized=False)
    quantizer._process_model_before_weight_loading(model)
    sizes = [
        quantizer.param_element_size(model, name, model.get_parameter(name))
        for name in ("model.layers.0.mlp.up_proj.weight", "lm_head.weight")
    ]
    assert sizes == [1, 4]


def test_the_document_has_the_table_of_these_models():
    if not DOCUMENT.exists():
        pytest.skip("the documents are not beside the tests")
    rows = [architectures.row(name) for name in MODELS]
    assert re.findall(r"^\| .* \| `\w+` \| \d+ \|.*$", DOCUMENT.read_text(), re.M) == rows, "\n".join(rows)
    assert os.environ["HF_HUB_OFFLINE"] == "1"

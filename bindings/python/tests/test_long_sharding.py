"""Layers that are cut over ranks: every mesh, dtype, layout and shape, and the example."""

import itertools
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import agreeing_ranks, run_ranks

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)

ROOT = Path(__file__).resolve().parents[3]
SHAPES, DTYPES, CUTS = ("even", "uneven"), ("float32", "bfloat16"), ("plain", "balanced")


@pytest.mark.parametrize("world", [1, 2, 4])
def test_tensor_parallel_layers_are_those_of_one_process(world, tmp_path):
    cases = itertools.product(DTYPES, SHAPES, CUTS)
    jobs = ":".join(",".join(("tensor_parallel", *case)) for case in cases)
    run_ranks(tmp_path, f"{world}:several:{jobs}")


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_layout_of_inputs_and_outputs_and_sequence_parallelism(world, shape, tmp_path):
    run_ranks(tmp_path, f"{world}:layouts:{shape}")


@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("kind", ["fsdp", "ddp"])
def test_data_parallel_training_is_that_of_one_process(world, kind, tmp_path):
    cases = itertools.product((kind,), DTYPES, SHAPES)
    jobs = ":".join(",".join(("data_parallel", *case)) for case in cases)
    run_ranks(tmp_path, f"{world}:several:{jobs}")


def test_gradients_on_several_meshes_are_clipped_by_one_norm(tmp_path):
    run_ranks(tmp_path, "4:clipped")


def test_a_mesh_of_three_dimensions_replicates_shards_and_cuts(tmp_path):
    run_ranks(tmp_path, "4:hsdp")


def test_a_mesh_of_two_dimensions_trains_as_one_process_does(tmp_path):
    cases = itertools.product(DTYPES, SHAPES, CUTS)
    jobs = ":".join(",".join(("mesh_2d", *case)) for case in cases)
    run_ranks(tmp_path, f"4:several:{jobs}")


@pytest.mark.parametrize("shape", SHAPES)
def test_checkpoints_move_between_meshes_bit_for_bit(shape, tmp_path):
    run_ranks(
        tmp_path,
        f"4:save:a:balanced:{shape}",
        f"2:load:a:balanced:{shape}:b",
        f"1:load:b:one:{shape}:c:torch",
        f"4:load:c:2d:{shape}:d",
        f"2:load:d:fsdp:{shape}:e",
        f"2:load:e:plain:{shape}:f",
        f"4:load:f:2d:{shape}",
        f"1:load:a:plain:{shape}",
    )


def test_a_plain_state_dict_goes_both_ways(tmp_path):
    cases = [(2, "balanced"), (2, "fsdp"), (4, "2d"), (4, "plain"), (1, "one")]
    run_ranks(
        tmp_path, *(f"{world}:plain_both_ways:{how}:{shape}" for world, how in cases for shape in SHAPES)
    )


def test_what_does_not_fit_is_refused(tmp_path):
    run_ranks(tmp_path, "2:wrong_loads:w")


def test_a_model_on_the_meta_device_is_cut_and_loaded(tmp_path):
    run_ranks(tmp_path, "2:from_meta:a", "4:from_meta:b")


def test_ranks_that_drew_other_patterns_take_one(tmp_path):
    run_ranks(tmp_path, "2:ranks_that_differ", "4:more_ranks_than_blocks")


def test_torch_compile_follows_a_sharded_layer(tmp_path):
    run_ranks(
        tmp_path,
        "2:compiled:even:plain",
        "2:compiled:uneven:balanced",
        "2:compiled:uneven:balanced:inductor",
        "4:compiled_2d",
    )


def test_what_is_torchs_own_needs_nothing_of_ours(tmp_path):
    run_ranks(
        tmp_path,
        "2:several:pipeline:optimizer_over_ranks:fsdp1:checkpointed:norm_by_sequence:saved_beside_training",
        "2:policies",
        "4:several:policies:norm_by_sequence",
    )


@pytest.mark.parametrize("world", [1, 2, 4])
def test_experts_over_ranks_are_those_of_one_process(world, tmp_path):
    cases = [("8", "0"), ("5", "6"), ("2", "0")]  # even, uneven, and ranks without any
    run_ranks(tmp_path, f"{world}:several:{':'.join(','.join(('experts', *case)) for case in cases)}")


@pytest.mark.parametrize("world", [2, 4])
def test_experts_take_any_routing(world, tmp_path):
    kinds = ("rank_0_has_none", "nobody_has_any", "one_expert_has_all", "one_rank_has_all")
    run_ranks(tmp_path, f"{world}:several:{':'.join(f'uneven_experts,{kind}' for kind in kinds)}")


def test_experts_over_one_dimension_and_fully_shard_over_the_other(tmp_path):
    run_ranks(tmp_path, "4:experts_2d")


@pytest.mark.parametrize("world", [3, 4])
def test_uneven_dtensors_pass_through_our_operators(world, tmp_path):
    run_ranks(tmp_path, f"{world}:uneven_operators")


def test_three_ranks_load_what_two_saved_and_back(tmp_path):
    run_ranks(
        tmp_path,
        "3:save:a:balanced:uneven",
        "2:load:a:plain:uneven:b",
        "3:load:b:fsdp:uneven",
        "3:layouts:uneven",
        "3:empty_batches",
    )


@pytest.mark.parametrize("how", ["balanced", "fsdp", "2d"])
def test_optimizers_step_in_bf16(how, tmp_path):
    run_ranks(tmp_path, f"4:bf16_steps:{how}")


@pytest.mark.parametrize("world", [1, 2, 4])
def test_dtensors_pass_through_our_operators(world, tmp_path):
    run_ranks(tmp_path, f"{world}:operators")


def torchrun(ranks, *words, code=0):
    """What the example printed."""
    program = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    run = subprocess.run(
        [*program, str(ROOT / "examples/train_sharded.py"), *words],
        env={**os.environ, "SPARSE_AUTOTUNE": "off", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert run.returncode == code, run.stdout + run.stderr
    return run.stdout + run.stderr


def losses(printed):
    return re.findall(r"^step +(\d+)  loss ([0-9.]+)$", printed, re.M)


needs_examples = pytest.mark.skipif(
    not (ROOT / "examples/train_sharded.py").exists(), reason="the examples are not beside the tests"
)


@needs_examples
def test_the_example_resumes_on_another_number_of_ranks(tmp_path):
    saved = str(tmp_path / "saved")
    torchrun(2, "--tensor", "2", "--steps", "3", "--save", saved)
    resumed, one = torchrun(1, "--steps", "3", "--resume", saved), torchrun(1, "--steps", "6")
    ((step, loss),), ((last, wanted),) = losses(resumed), losses(one)
    assert step == last == "6"
    assert float(loss) == pytest.approx(float(wanted), abs=1e-4)
    assert re.search(r"^wrote (\d+ ){16}\(\d+% right\)$", resumed, re.M)


@needs_examples
def test_the_example_names_what_does_not_divide():
    assert "3 ranks by --tensor 1 do not divide the 16 rows" in torchrun(3, "--steps", "1", code=1)
    alone = [sys.executable, str(ROOT / "examples/train_sharded.py")]
    assert (
        b"expected torchrun: torchrun --nproc-per-node 2" in subprocess.run(alone, capture_output=True).stderr
    )


def test_ten_rounds_of_ranks_that_come_late_and_die(tmp_path):
    """And ten others, for as long as SAT_TEST_SECONDS says (`make soak`)."""
    end = time.monotonic() + float(os.environ.get("SAT_TEST_SECONDS", "0"))
    seed = 1
    while seed == 1 or time.monotonic() < end:
        folder = tmp_path / str(seed)
        folder.mkdir()
        agreeing_ranks(folder, 10, seed=seed)
        shutil.rmtree(folder)
        seed = int.from_bytes(os.urandom(3), "little")

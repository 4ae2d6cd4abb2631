"""Layers that are cut over ranks: a short form. test_long_sharding.py has every mesh, dtype and layout."""

import numpy as np
import pytest
from conftest import run_ranks

import sparse_autotune as sa
from sparse_autotune._cuts import Cut, Layout, runs

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)


def test_two_ranks_compute_and_save_what_one_does(tmp_path):
    run_ranks(
        tmp_path,
        "2:several:tensor_parallel,float32,uneven,balanced:tensor_parallel,bfloat16,even,plain:"
        "data_parallel,fsdp,float32,uneven:data_parallel,ddp,float32,even:save,a,balanced,uneven",
        "1:load:a:one:uneven:b:torch",
    )


def test_shapes_and_memory_on_one_of_64_ranks(tmp_path):
    run_ranks(tmp_path, "1:fake")


# ---- cuts ----


def random_pattern(rng, rows, columns):
    kept = rng.random((rows, columns)) < rng.random((rows, 1))
    row_ptr = np.concatenate(([0], np.cumsum(kept.sum(1))))
    return row_ptr, np.nonzero(kept)[1], kept


@pytest.mark.parametrize("by_rows", [True, False])
@pytest.mark.parametrize("balanced", [True, False])
@pytest.mark.parametrize("parts", [1, 2, 3, 5, 9])
def test_the_parts_of_a_layout_are_the_matrix(by_rows, balanced, parts):
    rng = np.random.default_rng(parts)
    rows, columns, block = 7, 6, (4, 3)
    shape = rows * 4 - 1, columns * 3 - 2
    row_ptr, col_idx, kept = random_pattern(rng, rows, columns)
    count = rows if by_rows else columns
    weights = kept.sum(1 if by_rows else 0)
    cut = Cut.balanced(weights, parts) if balanced else Cut.plain(count, parts)
    layout = Layout(row_ptr, col_idx, shape, block, by_rows, cut)
    stored = np.concatenate([layout.stored(rank) for rank in range(parts)])
    assert sorted(stored[stored >= 0]) == list(range(len(col_idx)))
    values = rng.standard_normal((len(col_idx), *block))
    whole = sa.BsrMatrix(row_ptr, col_idx, values, shape).to_dense()
    assert sorted(layout.features) == list(range(shape[0 if by_rows else 1]))
    for rank in range(parts):
        own_ptr, own_columns, own_shape = layout.part(rank)
        local = sa.BsrMatrix(own_ptr, own_columns, values[layout.orders[rank]], own_shape).to_dense()
        mine = layout.features_of(rank)
        assert np.array_equal(local, whole[mine] if by_rows else whole[:, mine])
        found = np.full(layout.width, -1)
        for place, number, length in runs(layout.stored(rank)):
            found[place : place + length] = range(number, number + length)
        assert np.array_equal(found, layout.stored(rank))


def test_a_balanced_cut_is_near_the_mean_and_has_as_many_blocks_as_chunk():
    rng = np.random.default_rng(0)
    weights = rng.integers(0, 100, 64)
    cut = Cut.balanced(weights, 8)
    assert [len(part) for part in cut.parts] == [8] * 8
    loads = [weights[list(part)].sum() for part in cut.parts]
    assert max(loads) <= 1.1 * weights.sum() / 8
    assert cut == Cut.balanced(weights, 8) and hash(cut) == hash(Cut.balanced(weights, 8))


def test_a_balanced_cut_is_never_heavier_than_a_plain_one():
    rng = np.random.default_rng(0)
    for _ in range(2000):
        weights, parts = rng.integers(0, 30, rng.integers(0, 40)), int(rng.integers(1, 9))
        heaviest = [
            max(sum(weights[list(part)]) for part in cut.parts)
            for cut in (Cut.balanced(weights, parts), Cut.plain(len(weights), parts))
        ]
        assert heaviest[0] <= heaviest[1], (weights, parts)


def test_wrong_cuts_are_refused():
    with pytest.raises(ValueError, match="each number from 0 on in one part"):
        Cut([[0, 1], [1]])
    with pytest.raises(ValueError, match="cut has 3 block rows; expected 2"):
        Layout([0, 1, 2], [0, 1], (8, 8), (4, 4), True, Cut.plain(3, 2))
    for style in (sa.distributed.ColwiseParallel, sa.distributed.RowwiseParallel):
        with pytest.raises(TypeError, match="cut is a list; expected what .*balance returns"):
            style(cut=[[0, 1], [2, 3]])
    layers = sa.SparseLinear(64, 128, block=16), sa.SparseLinear(64, 128, block=8)
    with pytest.raises(ValueError, match="expected the same of all layers"):
        sa.distributed.balance(rows=layers, parts=2)
    with pytest.raises(ValueError, match="rows and columns are empty"):
        sa.distributed.balance(parts=2)
    with pytest.raises(TypeError, match="rows has a Linear"):
        sa.distributed.balance(rows=torch.nn.Linear(4, 4), parts=2)
    with pytest.raises(ValueError, match="parts is 0"):
        sa.distributed.balance(rows=layers[0], parts=0)
    with pytest.raises(RuntimeError, match="has a layer without a pattern"):
        sa.distributed.balance(rows=sa.SparseLinear(64, 64, block=16, device="meta"), parts=2)

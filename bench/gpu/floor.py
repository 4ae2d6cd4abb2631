"""What no kernel of a given tile can go below: a row's floor, from its pattern and the rates that this GPU
was seen to reach.

Three times, of which the largest is the floor:
- operations: arithmetic on stored blocks.
- hbm: bytes that must move between memory and the chip. Cold all of them; back to back only those that L2
  does not hold.
- l2: bytes that multiprocessors must read through L2 with the tile of the variant, TM x TN. Of a product: a
  stored block once for each panel of TN columns, and its rows of B, all columns, once for each slice of TM of
  its rows. Where a kernel takes several block rows along the union of their columns (`union`: TM rows;
  `pair`: two block rows) B's rows count once a column of the union; with blocks of 16, where B lies by
  columns, `union` takes four neighbouring columns together. Of a sampled product: X's rows once for each
  tile, which holds as many blocks of a block row as fit TN, and Y's columns once a block and slice. C is
  written and not counted.
"""

import re

SIZES = {"f16": 2, "bf16": 2, "f32": 4, "f64": 8}
BAND = 2048  # rows that are searched for a group: SAT_SEARCH_WINDOW of row_groups.h


def tile_of(variant):
    """Rows and columns, as its name says; None: it has none."""
    found = re.search(r"_(\d+)x(\d+)(?:_|$)", variant)
    return (int(found[1]), int(found[2])) if found else None


def ceiling_of(problem):
    return "tf32" if problem.tf32 else problem.dtype


def rows_of(problem):
    """The block columns of each block row of the product: of the transpose, where that is asked for."""
    lists = problem.blocks()
    if not problem.transpose:
        return lists
    turned = [[] for _ in range(problem.m // problem.block)]
    for i, columns in enumerate(lists):
        for j in columns:
            turned[j].append(i)
    return turned


def together(rows, size):
    """As sat_union_groups does it: the first row that is left, then who has most in common with those that
    are in."""
    found = []
    for start in range(0, len(rows), BAND // size * size):
        left = {i: set(rows[i]) for i in range(start, min(start + BAND // size * size, len(rows)))}
        while left:
            group, union = [], set()
            while left and len(group) < size:
                best = max(left, key=lambda y: len(union & left[y]))  # the first of the best
                group.append(best)
                union |= left.pop(best)
            found.append(group)
    return found


def groups(rows, variant, tile, block):
    """Block rows that share what they read of B."""
    size = 2 if variant.endswith("_pair") else tile[0] // block if variant.endswith("_union") else 1
    return together(rows, size) if size > 1 else [[i] for i in range(len(rows))]


def l2_bytes(problem, variant):
    """None where the variant's name has no tile."""
    p, tile = problem, tile_of(variant)
    if not tile:
        return None
    rows, size = rows_of(p), SIZES[p.dtype]
    blocks = sum(map(len, rows))
    slices = -(-p.block // tile[0])
    if p.op == "sampled":
        side_by_side, panels = max(1, tile[1] // p.block), -(-p.block // tile[1])
        tiles = sum(-(-len(columns) // side_by_side) for columns in rows) * panels
        return (tiles + blocks * slices) * p.block * p.k * size
    each = 4 if p.block == 16 and variant.endswith("_union") and p.layout.startswith("col") else 1
    unions = (set().union(*(rows[i] for i in group)) for group in groups(rows, variant, tile, p.block))
    steps = sum(len({j // each for j in union}) * each for union in unions)
    return (blocks * p.block * p.block * -(-p.n // tile[1]) + steps * slices * p.block * p.n) * size


def floors(problem, flops, total, l2, ceilings, cold):
    """Seconds by what limits. `total`: bytes of all operands; `l2`: l2_bytes, or None."""
    beyond = total if cold else max(0, total - ceilings["l2_bytes"])
    return {
        "operations": flops / ceilings[ceiling_of(problem)],
        "hbm": beyond / ceilings["memory"],
        "l2": (l2 or total) / ceilings["l2"],
    }

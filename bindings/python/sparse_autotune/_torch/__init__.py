"""PyTorch: the same products and attention by three routes.

=====================  ===============================================  ====================================
route                  taken when                                       why it exists
=====================  ===============================================  ====================================
fast path              tensors are plain, and nothing but the result    A call costs a few microseconds: C
(`quick`)              is wanted: no gradient, no autocast, no mode     code reads the tensors, finds the
                                                                        plan and runs it. torch's dispatcher
                                                                        and Python are passed by.
eager path             tensors are plain, and a gradient is wanted,     One autograd function around the
(`eager`,              or the fast path has no plan for them yet        operation. It costs less than an
`attention`)                                                            operator, and knows the pattern
                                                                        itself instead of its indices.
                                                                        Each pass is one call of the fast
                                                                        path's C code, once its plan is
                                                                        known.
operators              everything else: torch.compile, torch.export,    torch sees one operator, with fake
(`operators`,          make_fx, jit.trace, dispatch modes, fake         kernel, gradients, vmap and autocast
`attention_operators`) tensors, vmap, tensor subclasses                 rules, and can record or replace it.
=====================  ===============================================  ====================================

All three end in the same plan of the library. A route gives way to the next one: `_fast.Runner` returns None
for tensors that it does not know, and the eager path asks `modes.plain` before it passes the dispatcher by.
What ran by the full path (`_products`, `_attention`) leaves its plan with a runner, which serves every route
from then on: `run` asks what torch wants of the tensors, and `run_inside` is for autograd functions and
operators, which know it.

Values that are fixed have plans of their own (`_fixed`), which every route is given instead of the pattern's.
Operators, which get tensors alone, find them by the address of the values.

What a step of attention costs beyond torch's own autograd (a call of `backward()` and a function that
computes nothing): checking the arguments and finding the runners, one C call a pass that reads three or six
tensors, makes two or three and runs the plan, and one look at what surrounds the call before each pass.

The files, each knowing only those above it:

- `private`: every private name of torch that is used, with a fallback for each
- `refusals`: gradients that are not offered
- `modes`: whether modes, traces or transforms surround a call
- `sharding`: how DTensors pass through operators
- `patterns`, `masks`: patterns by their index tensors, as operators find them
- `quick`: what the fast path needs of torch
- `eager`: products past the dispatcher, and their gradients
- `operators`, `dynamic_operators`: matmul and sampled as operators; of indices that change
- `choose`: which blocks to keep, of their scores
- `calls`: which route matmul and sampled_matmul take
- `dense_weight`: the dense weight of a sparse layer, made only where it is read
- `own_attention`: torch's own attention kernels as variants
- `attention`, `attention_operators`: the routes of attention
- `grouped`, `grouped_operators`: the routes of products of groups
- `explained`: masks that are tensors, in the words of attention
- `drop_in`: torch's scaled_dot_product_attention by its own signature

The package is imported when torch is: by `import sparse_autotune`, or by the first call that meets a tensor.
"""

from . import (
    attention,  # noqa: F401
    attention_operators,  # noqa: F401
    calls,  # noqa: F401
    choose,  # noqa: F401
    dense_weight,  # noqa: F401
    drop_in,  # noqa: F401
    dynamic_operators,  # noqa: F401
    eager,  # noqa: F401
    explained,  # noqa: F401
    grouped,  # noqa: F401
    grouped_operators,  # noqa: F401
    masks,  # noqa: F401
    modes,  # noqa: F401
    operators,  # noqa: F401
    own_attention,  # noqa: F401
    patterns,  # noqa: F401
    private,  # noqa: F401
    quick,  # noqa: F401
    refusals,  # noqa: F401
    sharding,  # noqa: F401
)

"""Products of groups, as in a mixture of experts: rows of x in groups, each with a matrix of its own."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from . import _abi, _arrays, _ops, _products, _quick
from ._arrays import Operand, refuse_nested, torch_module
from ._pattern import Plans, alignment, names_of, problem_of
from ._products import Options, View, check_pair

# Set by _torch.grouped once torch is there.
_torch_matmul: Any = None
_torch_weights: Any = None

MOST_SIZES = 256  # numbers of groups and sizes of their matrices whose plans are kept


def grouped_matmul(
    x: Any,
    w: Any,
    offsets: Any,
    *,
    bias: Any = None,
    activation: str | None = None,
    out: Any = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    out_dtype: Any = None,
    allow_tf32: bool | None = None,
    deterministic: bool = True,
) -> Any:
    """``activation(alpha * x[rows of g] @ w[g] + beta * out + bias[g])`` for each group g of the rows of x.

    x is (rows, k), w is (groups, k, n) of any strides: of weights that are stored as (groups, n, k),
    ``w.transpose(1, 2)`` is taken as it is. The result is (rows, n).

    - ``offsets`` are int32 or int64 numbers on the device of x. With ``groups + 1`` of them, group g has the
      rows ``offsets[g]`` to ``offsets[g + 1] - 1``, and the first is 0. With ``groups`` of them they are the
      ends of the groups, as `torch._grouped_mm` has them. They never decrease; groups may be empty. Rows
      behind the last group get zeros, and no bias.
    - ``bias`` is (groups, n), of the result's dtype.
    - The rest is as in `matmul`.

    Gradients flow to x, w and bias, twice if asked.

    >>> import numpy as np, sparse_autotune as sa
    >>> x, w = np.ones((5, 3)), np.stack([np.full((3, 2), 1.0), np.full((3, 2), 10.0)])
    >>> sa.grouped_matmul(x, w, np.array([0, 1, 4]))
    array([[ 3.,  3.],
           [30., 30.],
           [30., 30.],
           [30., 30.],
           [ 0.,  0.]])
    """
    if _ops._compiling():
        refuse_inside_compile(allow_tf32, deterministic)
        return _torch_matmul(x, w, offsets, bias, activation, alpha, out, beta, out_dtype)
    if out is None and out_dtype is None and allow_tf32 is None and deterministic is True and beta == 0:
        quick = _known(w, ("grouped", "none" if activation is None else activation, alpha, bias is not None))
        inputs = (x, w, offsets) if bias is None else (x, w, offsets, bias)
        result = None if quick is None or _ops._forward_ad._current_level >= 0 else quick.run(*inputs)
        if result is not None:
            return result
        _abi.raise_interrupt()
    options = Options(alpha, beta, bias, activation, out_dtype, allow_tf32, False, deterministic)
    if _wants_torch(offsets, out, x=x, w=w, bias=bias):
        return _torch_matmul(x, w, offsets, bias, activation, alpha, out, beta, out_dtype, options)
    offsets = from_zero(offsets, w)
    if out is None and out_dtype is None and options.beta == 0 and options.flags == 0:
        return forward(x, w, offsets, bias, activation or "none", options.alpha, allow_tf32)
    return matmul_with_plan(x, w, offsets, out, options, False)[0]


def grouped_weights(
    x: Any,
    z: Any,
    offsets: Any,
    *,
    out: Any = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    out_dtype: Any = None,
    allow_tf32: bool | None = None,
    deterministic: bool = True,
) -> Any:
    """``alpha * x[rows of g].T @ z[rows of g] + beta * out[g]`` for each group g: the gradient of
    `grouped_matmul` to its weights, where z is that to its result.

    x is (rows, k), z is (rows, n), and the result (groups, k, n). The offsets are ``groups + 1`` numbers, for
    nothing else says how many groups there are. The matrix of an empty group is zero; rows behind the last
    group are not read. `out` may have any strides: gradients of weights that are stored as (groups, n, k) go
    into ``grad.transpose(1, 2)``. Gradients flow to x and z.

    >>> import numpy as np, sparse_autotune as sa
    >>> x, z = np.ones((5, 1)), np.arange(10.0).reshape(5, 2)
    >>> sa.grouped_weights(x, z, np.array([0, 2, 2, 5]))
    array([[[ 2.,  4.]],
    <BLANKLINE>
           [[ 0.,  0.]],
    <BLANKLINE>
           [[18., 21.]]])
    """
    if _ops._compiling():
        refuse_inside_compile(allow_tf32, deterministic)
        return _torch_weights(x, z, offsets, alpha, out, beta, out_dtype)
    options = Options(alpha, beta, None, None, out_dtype, allow_tf32, False, deterministic)
    if _wants_torch(offsets, out, x=x, z=z):
        return _torch_weights(x, z, offsets, alpha, out, beta, out_dtype, options)
    if out is None and out_dtype is None and options.beta == 0 and options.flags == 0:
        return weights(x, z, offsets, options.alpha, allow_tf32)
    return weights_with_plan(x, z, offsets, out, options, False)[0]


def refuse_inside_compile(allow_tf32: bool | None, deterministic: bool) -> None:
    if allow_tf32 is not None:
        raise NotImplementedError(
            "allow_tf32 is not offered inside torch.compile, which does as torch is set to"
        )
    if deterministic is not True:
        raise NotImplementedError("deterministic=False is not offered inside torch.compile")


def _wants_torch(offsets: Any, out: Any, **operands: Any) -> bool:
    """Whether a call needs torch's machinery. Raises where an operand's gradient would be lost."""
    torch = torch_module()
    if torch is None:
        return False
    (name, x), *others = ((n, t) for n, t in operands.items() if t is not None)
    for n, t in ((name, x), *others, ("out", out)):
        refuse_nested(torch, t, n)
    if isinstance(x, torch.Tensor):
        for n, t in (*others, ("offsets", offsets)):
            if not isinstance(t, torch.Tensor):
                raise TypeError(f"{n} is a {type(t).__name__}; expected a torch tensor, as {name} is")
        if _torch_matmul is None:  # torch was imported later than this package
            from . import _torch  # noqa: F401
        if x.is_meta:
            return True
    if torch.is_grad_enabled():
        wanted = [n for n, t in ((name, x), *others) if isinstance(t, torch.Tensor) and t.requires_grad]
        if wanted and out is not None:
            raise RuntimeError(
                f"out is given, and {wanted[0]} requires grad: gradients do not flow through out"
            )
        if wanted and not isinstance(x, torch.Tensor):
            raise RuntimeError(
                f"{wanted[0]} requires grad, and {name} is a {type(x).__name__}, whose result could not: use "
                "torch tensors"
            )
    return any([_ops.wants_torch(torch, None, t, out, None) for _, t in ((name, x), *others)])


# ---- offsets ----


def from_zero(offsets: Any, w: Any) -> Any:
    """Offsets that begin with 0, also where they were the ends of the groups: then there are as many as
    groups. What is wrong is reported later."""
    shape = getattr(w, "shape", ())
    torch, cupy = torch_module(), _arrays.cupy_module()
    if len(shape) != 3:
        return offsets
    if torch is not None and isinstance(offsets, torch.Tensor):
        if offsets.dim() != 1 or offsets.shape[0] != shape[0]:
            return offsets
        return torch.nn.functional.pad(offsets, (1, 0))
    if cupy is not None and isinstance(offsets, cupy.ndarray):
        ends = offsets.ndim == 1 and len(offsets) == shape[0]
        return cupy.concatenate((cupy.zeros(1, offsets.dtype), offsets)) if ends else offsets
    offsets = _arrays.host(offsets, "offsets")
    if offsets.ndim != 1 or len(offsets) != shape[0]:
        return offsets
    return np.concatenate((np.zeros(1, offsets.dtype if len(offsets) else np.int64), offsets))


_TYPES = {"int32": _abi.I32, "int64": _abi.I64}


def _describe_offsets(offsets: Any, groups: int | None, x: Operand) -> tuple[Any, int, int, int]:
    """The array, its address, the type of its numbers, and the number of groups."""
    torch, cupy = torch_module(), _arrays.cupy_module()
    tensor = torch is not None and isinstance(offsets, torch.Tensor)
    if x.kind == "torch" and not tensor:
        raise TypeError(f"offsets is a {type(offsets).__name__}; expected a torch tensor, as x is")
    if tensor:
        refuse_nested(torch, offsets, "offsets")
        if offsets.layout is not torch.strided:
            raise TypeError(f"offsets is a tensor of layout {offsets.layout}; expected a dense one")
        device, dtype = str(offsets.device), str(offsets.dtype).removeprefix("torch.")
    elif cupy is not None and isinstance(offsets, cupy.ndarray):
        device, dtype = f"cuda:{offsets.device.id}", offsets.dtype.name
    else:
        offsets = _arrays.host(offsets, "offsets")
        device, dtype = "cpu", offsets.dtype.name if offsets.dtype.isnative else str(offsets.dtype)
    if dtype not in _TYPES:
        raise TypeError(f"offsets has dtype {dtype}; expected int32 or int64")
    shape = tuple(offsets.shape)
    if len(shape) != 1:
        raise ValueError(f"offsets has {len(shape)} dimensions; expected 1")
    if groups is None and shape[0] < 1:
        raise ValueError("offsets has no entries; expected one more than groups")
    if groups is not None and shape[0] != groups + 1:
        raise ValueError(
            f"offsets has {shape[0]} entries; expected {groups + 1}, one more than groups, or {groups}, "
            "their ends"
        )
    if device != x.device:
        raise ValueError(f"offsets is on {device} and x on {x.device}; expected one device")
    if tensor:
        offsets = offsets.contiguous()
        pointer = offsets.data_ptr()
    elif device == "cpu":
        offsets = np.require(offsets, None, ["C", "A"])
        pointer = offsets.ctypes.data
    else:
        offsets = cupy.ascontiguousarray(offsets)
        pointer = offsets.data.ptr
    return offsets, pointer, _TYPES[dtype], shape[0] - 1


# ---- plans ----

_plans: dict[tuple[int, int, int], Plans] = {}
_lock = threading.Lock()


def plans_of(groups: int, k: int, n: int) -> Plans:
    found = _plans.get((groups, k, n))
    if found is None:
        with _lock:
            while len(_plans) >= MOST_SIZES:
                del _plans[next(iter(_plans))]
            found = _plans.setdefault((groups, k, n), Plans())
    return found


def _known(w: Any, kind: tuple) -> Any:
    """The runner of such a product, or None where there was none yet."""
    try:
        plans = _plans.get(tuple(w.shape))
        return None if plans is None else plans.caches.get(kind)
    except (AttributeError, TypeError):  # the full path reports what is wrong
        return None


def _runner(shape: tuple, kind: tuple, alpha: float, offsets: Any, *arrays: Any) -> Any:
    """What may serve these, made now if need be; None where nothing may."""
    kinds = (np.ndarray,) if type(arrays[0]) is np.ndarray else _quick.torch_types
    if len(shape) != 3 or type(offsets) not in kinds:
        return None
    return _quick.runner(plans_of(*shape), kind, alpha) if _quick.serves(*arrays) else None


def forward(
    x: Any,
    w: Any,
    offsets: Any,
    bias: Any,
    activation: str,
    alpha: float,
    allow_tf32: bool | None = None,
) -> Any:
    """The product of arrays or plain tensors, with offsets that begin with 0: by a runner, or by the full
    path, which gives the runner its plan. No gradients."""
    kind = ("grouped", activation, alpha, bias is not None)
    more = () if bias is None else (bias,)
    quick = None
    if allow_tf32 is None:
        quick = _runner(tuple(getattr(w, "shape", ())), kind, alpha, offsets, x, w, *more)
    inputs = (x, w, offsets, *more)
    result = None if quick is None else quick.run_inside(*inputs)
    if result is None:
        _abi.raise_interrupt()
        options = Options(alpha, 0.0, bias, activation, None, allow_tf32)
        result, made = matmul_with_plan(x, w, offsets, None, options, quick is not None)
        _quick.install(quick, inputs, (result,), made)
    return result


def weights(x: Any, z: Any, offsets: Any, alpha: float, allow_tf32: bool | None = None) -> Any:
    """As `forward`, of the weights."""
    quick = None
    if allow_tf32 is None:
        try:
            shape = (offsets.shape[0] - 1, x.shape[1], z.shape[1])
        except (AttributeError, IndexError, TypeError):  # the full path reports what is wrong
            shape = ()
        quick = _runner(shape, ("weights", alpha), alpha, offsets, x, z)
    result = None if quick is None else quick.run_inside(x, z, offsets)
    if result is None:
        _abi.raise_interrupt()
        options = Options(alpha, allow_tf32=allow_tf32)
        result, made = weights_with_plan(x, z, offsets, None, options, quick is not None)
        _quick.install(quick, (x, z, offsets), (result,), made)
    return result


# ---- the full path ----


def check_shapes(x: tuple, w: tuple, bias: tuple | None = None) -> None:
    """ValueError that names the argument; for real and for traced tensors."""
    if len(x) != 2:
        raise ValueError(f"x has {len(x)} dimensions; expected 2, (rows, k)")
    if len(w) != 3:
        raise ValueError(f"w has {len(w)} dimensions; expected 3, (groups, k, n)")
    if x[1] != w[1]:
        raise ValueError(f"x has {x[1]} columns and w matrices of {w[1]} rows; expected as many")
    if bias is not None and tuple(bias) != (w[0], w[2]):
        raise ValueError(f"bias has shape {tuple(bias)}; expected ({w[0]}, {w[2]})")


def check_weight_shapes(x: tuple, z: tuple) -> None:
    for shape, name in ((x, "x"), (z, "z")):
        if len(shape) != 2:
            raise ValueError(f"{name} has {len(shape)} dimensions; expected 2")
    if x[0] != z[0]:
        raise ValueError(f"x has {x[0]} rows and z {z[0]}; expected as many")


def _check_bias(bias: Any, shape: tuple, dtype: int, x: Operand) -> Operand | None:
    if bias is None:
        return None
    o = _arrays.describe(bias, "bias")
    if o.shape != shape:
        raise ValueError(f"bias has shape {o.shape}; expected {shape}")
    if o.dtype != dtype:
        raise TypeError(
            f"bias has dtype {_abi.DTYPE_NAMES[o.dtype]}; expected {_abi.DTYPE_NAMES[dtype]}, that of the "
            "result"
        )
    if o.device != x.device:
        raise ValueError(f"bias is on {o.device} and x on {x.device}; expected one device")
    return o if _arrays.is_dense(o) else _products.dense_copy(o, "bias")


def _target(out: Any, shape: tuple, options: Options, x: Operand) -> Operand:
    given = None if out is None else _arrays.check_output(out, "out")
    dtype = _products._check_out_dtype(options.out_dtype, given, x)
    if given is None:
        _products.check_beta(options.beta, out)
        return _arrays.empty(x, shape, dtype)
    if given.shape != shape:
        raise ValueError(f"out has shape {given.shape}; expected {shape}")
    if given.device != x.device:
        raise ValueError(f"out is on {given.device} and x on {x.device}; expected one device")
    return given


def _problem(op, options, sizes, kind, vx, second, target, bias) -> Any:
    """`sizes`: rows, k, n and groups; `kind`: of the offsets' numbers; `bias`: whether there is one."""
    (m, k, n, groups), like = sizes, vx.operand
    vc = View(target, False, "out", output=True)
    return problem_of(
        op=op,
        m=m,
        n=n,
        k=k,
        a_dtype=like.dtype,
        b_dtype=second.operand.dtype,
        c_dtype=target.dtype,
        a=vx.layout,
        b=second.layout,
        c=vc.layout,
        a_align=alignment(like.pointer, like.device),
        b_align=alignment(second.operand.pointer, like.device),
        c_align=alignment(target.pointer, like.device),
        alpha=options.alpha,
        beta=options.beta,
        flags=options.flags_for(like),
        grouped=(groups, kind, bias, options.activation),
    )


def _run(op, options, sizes, offsets, vx, second, target, bias, keep) -> Any:
    _, place, kind, _ = offsets
    problem = _problem(op, options, sizes, kind, vx, second, target, bias is not None)
    more = () if bias is None else (bias.pointer,)
    inputs = (vx.operand.pointer, second.operand.pointer, place, *more)
    _, k, n, groups = sizes
    plans = plans_of(groups, k, n)
    return _products.run(plans, problem, inputs, (target.pointer,), vx.operand, names_of(problem), keep)


def matmul_with_plan(x, w, offsets, out, options: Options, keep: bool) -> tuple:
    """The result, and the plan if it is to be kept; no gradients. The offsets begin with 0."""
    ox, ow = _arrays.describe(x, "x"), _arrays.describe(w, "w")
    check_shapes(ox.shape, ow.shape)
    check_pair(ow, ox, "w", "x")
    (m, k), (groups, _, n) = ox.shape, ow.shape
    index = _describe_offsets(offsets, groups, ox)
    target = _target(out, (m, n), options, ox)
    bias = _check_bias(options.bias, (groups, n), target.dtype, ox)
    plan = None
    if 0 not in target.shape:
        vx, vw = View(ox, False, "x"), View(ow, False, "w")
        # a copy's address is nobody's
        keep = keep and vx.operand.array is x and vw.operand.array is w and index[0] is offsets
        keep = keep and (bias is None or bias.array is options.bias)
        sizes = (m, k, n, groups)
        plan = _run(_abi.GROUPED, options, sizes, index, vx, vw, target, bias, keep)
        if out is not None:
            _products.count_write(out)
    return (_arrays.finish(target, ox) if out is None else out), plan


def weights_with_plan(x, z, offsets, out, options: Options, keep: bool) -> tuple:
    """As matmul_with_plan."""
    ox, oz = _arrays.describe(x, "x"), _arrays.describe(z, "z")
    check_weight_shapes(ox.shape, oz.shape)
    check_pair(oz, ox, "z", "x")
    (m, k), n = ox.shape, oz.shape[1]
    index = _describe_offsets(offsets, None, ox)
    target = _target(out, (index[3], k, n), options, ox)
    plan = None
    if 0 not in target.shape:
        vx, vz = View(ox, False, "x"), View(oz, False, "z")
        keep = keep and vx.operand.array is x and vz.operand.array is z and index[0] is offsets
        sizes = (m, k, n, index[3])
        plan = _run(_abi.GROUPED_WEIGHTS, options, sizes, index, vx, vz, target, None, keep)
        if out is not None:
            _products.count_write(out)
    return (_arrays.finish(target, ox) if out is None else out), plan


# ---- ahead of time ----


def matmul_problems(
    x: Any,
    w: Any,
    offsets: Any,
    *,
    bias: Any = None,
    activation: str | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    out_dtype: Any = None,
    allow_tf32: bool | None = None,
    deterministic: bool = True,
    backward: bool = False,
) -> tuple:
    """Plans, x, and the problems that `grouped_matmul` of such operands is, and with `backward` those of its
    gradients."""
    options = Options(alpha, 0.0, bias, activation, out_dtype, allow_tf32, False, deterministic)
    options.beta = _products.number(beta, "beta")
    ox, ow = _arrays.describe(x, "x"), _arrays.describe(w, "w")
    check_shapes(ox.shape, ow.shape)
    check_pair(ow, ox, "w", "x")
    (m, k), (groups, _, n) = ox.shape, ow.shape
    if 0 in (m, k, n, groups):
        raise ValueError(f"x has shape {ox.shape} and w {ow.shape}; expected something to multiply")
    kind = _describe_offsets(from_zero(offsets, w), groups, ox)[2]
    y = _arrays.empty(ox, (m, n), _products._check_out_dtype(out_dtype, None, ox))
    _check_bias(bias, (groups, n), y.dtype, ox)
    vx, vw, sizes = View(ox, False, "x"), View(ow, False, "w"), (m, k, n, groups)
    found = [_problem(_abi.GROUPED, options, sizes, kind, vx, vw, y, bias is not None)]
    if backward:
        plain, z = (
            Options(alpha, allow_tf32=allow_tf32),
            View(_arrays.empty(ox, (m, n), ox.dtype), False, "z"),
        )
        o = vw.operand
        shape, strides = (groups, n, k), (o.strides[0], o.strides[2], o.strides[1])
        transposed = View(
            Operand(o.kind, o.array, o.pointer, shape, strides, o.dtype, o.device, o.maker), False, "w"
        )
        dx, dw = _arrays.empty(ox, (m, k), ox.dtype), _arrays.empty(ox, (groups, k, n), ox.dtype)
        found.append(_problem(_abi.GROUPED, plain, (m, n, k, groups), kind, z, transposed, dx, False))
        found.append(_problem(_abi.GROUPED_WEIGHTS, plain, sizes, kind, vx, z, dw, False))
    return plans_of(groups, k, n), ox, found


def weight_problems(
    x: Any,
    z: Any,
    offsets: Any,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    out_dtype: Any = None,
    allow_tf32: bool | None = None,
    deterministic: bool = True,
) -> tuple:
    """As matmul_problems, of `grouped_weights`."""
    options = Options(alpha, beta, None, None, out_dtype, allow_tf32, False, deterministic)
    ox, oz = _arrays.describe(x, "x"), _arrays.describe(z, "z")
    check_weight_shapes(ox.shape, oz.shape)
    check_pair(oz, ox, "z", "x")
    _, _, kind, groups = _describe_offsets(offsets, None, ox)
    sizes = (*ox.shape, oz.shape[1], groups)
    if 0 in sizes:
        raise ValueError(f"x has shape {ox.shape} and z {oz.shape}; expected something to multiply")
    dtype = _products._check_out_dtype(out_dtype, None, ox)
    target = _arrays.empty(ox, (groups, *sizes[1:3]), dtype)
    vx, vz = View(ox, False, "x"), View(oz, False, "z")
    problem = _problem(_abi.GROUPED_WEIGHTS, options, sizes, kind, vx, vz, target, False)
    return plans_of(groups, *sizes[1:3]), ox, [problem]

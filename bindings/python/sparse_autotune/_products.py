"""From operands of any kind to one problem of the library, and a plan that runs it.

The functions here give no gradients and choose no route: `_ops` does that.
"""

from __future__ import annotations

from typing import Any

from . import _abi, _arrays, _quick
from ._arrays import Operand, torch_module
from ._dynamic import AnyPattern, index_pointers
from ._fixed import Fixed, Snapshot
from ._matrix import BsrMatrix
from ._pattern import Kept, Pattern, Problem, alignment, launch, problem_of

# ---- what is asked of a product ----


class Options:
    """What is asked of a product beside its operands, checked."""

    __slots__ = ("activation", "alpha", "beta", "bias", "flags", "out_dtype", "tf32")

    def __init__(
        self,
        alpha=1.0,
        beta=0.0,
        bias=None,
        activation=None,
        out_dtype=None,
        allow_tf32=None,
        allow_dense=False,
        deterministic=True,
    ):
        self.alpha, self.beta = number(alpha, "alpha"), number(beta, "beta")
        self.bias, self.out_dtype, self.tf32 = bias, out_dtype, allow_tf32
        self.activation = activation_code(activation)
        self.flags = (_abi.ALLOW_DENSE if allow_dense else 0) | (
            0 if deterministic else _abi.ALLOW_NONDETERMINISTIC
        )

    def flags_for(self, b: Operand) -> int:
        return self.flags | tf32_flag(self.tf32, b)


def tf32_flag(allowed: bool | None, b: Operand) -> int:
    if b.dtype != _abi.F32 or b.device == "cpu":
        return 0
    if allowed is None:
        allowed = b.kind == "torch" and torch_allows_tf32()
    return _abi.ALLOW_TF32 if allowed else 0


def torch_allows_tf32() -> bool:
    """What torch is set to."""
    from . import _torch

    try:
        return bool(_torch.private.allows_tf32())
    except (AttributeError, RuntimeError):  # the old and the new way to say so were mixed
        return False


def activation_code(activation: str | None) -> int:
    code = (
        _abi.ACTIVATIONS.get("none" if activation is None else activation)
        if isinstance(activation, (str, type(None)))
        else None
    )
    if code is None:
        raise ValueError(f"activation is {activation!r}; expected None, 'relu', 'gelu' or 'silu'")
    return code


def number(x: Any, name: str) -> float:
    if type(x) is float:
        return x
    if getattr(x, "requires_grad", False) and torch_module().is_grad_enabled():
        raise RuntimeError(f"{name} requires grad, and gradients do not reach it: use float({name})")
    try:
        if isinstance(x, (str, bytes)) or getattr(x, "ndim", 0):
            raise TypeError
        return float(x)
    except (TypeError, ValueError):
        raise TypeError(f"{name} is a {type(x).__name__}; expected a number") from None
    except OverflowError:
        raise ValueError(f"{name} is larger than any float64") from None


def check_beta(beta: float, out: Any) -> None:
    if out is None and beta != 0:
        raise ValueError(f"beta is {beta} without out; expected 0, or an out that it applies to")


# ---- layouts ----


def canonical(rows: int, cols: int, row_stride: int, col_stride: int) -> tuple[int, int]:
    """Strides with those of sizes 0 and 1 replaced by what a row-major matrix would have."""
    if rows == 0 or cols == 0:
        return max(cols, 1), 1
    if cols == 1:
        col_stride = 1
        row_stride = row_stride if rows > 1 else 1
    elif rows == 1:
        row_stride = cols * col_stride
    return row_stride, col_stride


def uniform(sizes: tuple, strides: tuple) -> tuple[int, int] | None:
    """Several dimensions as one: how many, and how far apart; None where they are not evenly spaced."""
    kept = [(n, s) for n, s in zip(sizes, strides) if n != 1]
    count = 1
    for n, _ in kept:
        count *= n
    for (_, outer), (n, inner) in zip(kept, kept[1:]):
        if outer != inner * n:
            return None
    return count, (kept[-1][1] if kept else 0)


def dense_copy(x: Operand, name: str) -> Operand:
    if x.kind == "torch":
        # contiguous() leaves an empty one as it is
        return _arrays.describe(x.array.clone(memory_format=torch_module().contiguous_format), name)
    if x.kind == "dlpack":
        raise ValueError(f"{name} has strides {x.strides}; expected evenly spaced batches")
    module = _arrays.cupy_module() if x.kind == "cupy" else _arrays.np
    return _arrays.describe(module.array(x.array, order="C", copy=True), name)


class View:
    """A dense operand as the library sees it: a batch of matrices."""

    __slots__ = ("batch", "cols", "layout", "operand", "rows")

    def __init__(self, x: Operand, left: bool, name: str, output: bool = False, whole: bool = True):
        """`left`: the matrix is transposed, its features are rows; all leading dimensions are columns, if
        `whole`."""
        for attempt in range(2):
            found = self._lay_out(x, left, whole)
            if found is not None:
                break
            if output or attempt:
                raise ValueError(
                    f"{name} has strides {x.strides}; expected evenly spaced elements that do not overlap"
                )
            x = dense_copy(x, name)
        self.operand = x
        self.rows, self.cols, self.batch, self.layout = found

    @staticmethod
    def _lay_out(x: Operand, left: bool, whole: bool) -> tuple | None:
        shape, strides = x.shape, x.strides
        if left:
            rows, row_stride = shape[-1], strides[-1]
            if whole:
                lead, batch = uniform(shape[:-1], strides[:-1]), (1, 0)
            else:
                lead, batch = (shape[-2], strides[-2]), uniform(shape[:-2], strides[:-2])
        else:
            rows, row_stride = (shape[0], strides[0]) if len(shape) == 1 else (shape[-2], strides[-2])
            lead, batch = (
                ((1, 1) if len(shape) == 1 else (shape[-1], strides[-1])),
                uniform(shape[:-2], strides[:-2]),
            )
        if lead is None or batch is None:
            return None
        cols, col_stride = lead
        row_stride, col_stride = canonical(rows, cols, row_stride, col_stride)
        if batch[0] == 0:  # strides of nothing
            row_stride, col_stride = max(cols, 1), 1
        if row_stride == 0 and col_stride == 0:  # the library's word for "row-major, no gaps"
            return None
        return rows, cols, batch[0], (row_stride, col_stride, batch[1] if batch[0] > 1 else 0)


# ---- running ----


def plain_problem(dtype: int, n: int, transpose: bool = False, align: int = 64) -> Problem:
    """A row-major product of one dtype, as a race or a plan ahead of time takes it."""
    return Problem(
        op=_abi.MATMUL,
        matmul=(transpose,),
        n=n,
        a_dtype=dtype,
        b_dtype=dtype,
        c_dtype=dtype,
        a_align=align,
        b_align=align,
        c_align=align,
    )


def run(
    plans: Pattern | Fixed,
    problem: Problem,
    inputs: tuple,
    outputs: tuple,
    like: Operand,
    names: dict | None = None,
    keep: bool = False,
    snapshot: Snapshot | None = None,
) -> Any:
    """Takes a plan, runs it on the stream of `like`, and gives it back, or to the caller, who then owns
    it. `snapshot`: the fixed values that it must have taken in."""
    stream, threads, capturing = (
        _arrays.stream_of(like),
        _arrays.threads_for(like),
        _arrays.is_capturing(like),
    )
    held = () if snapshot is None else (snapshot,)
    key, plan = plans.take(like.device, problem, stream, threads, capturing, *held)
    try:
        launch(plan, inputs, outputs, stream, threads, names)
    except BaseException:
        keep = False
        raise
    finally:
        if not keep or capturing:
            plans.give_back(key, plan)
    return None if not keep or capturing else Kept(plans, key, plan, stream, threads)


def _check_out_dtype(out_dtype: Any, out: Operand | None, b: Operand) -> int:
    wanted = (
        _arrays.dtype_code(out_dtype, "out_dtype")
        if out_dtype is not None
        else b.dtype
        if out is None
        else out.dtype
    )
    if out is not None and out.dtype != wanted:
        raise TypeError(
            f"out has dtype {_abi.DTYPE_NAMES[out.dtype]}; out_dtype is {_abi.DTYPE_NAMES[wanted]}"
        )
    if wanted != b.dtype and not (wanted == _abi.F32 and _abi.DTYPE_SIZE[b.dtype] == 2):
        name = "out" if out is not None else "out_dtype"
        raise TypeError(
            f"{name} has dtype {_abi.DTYPE_NAMES[wanted]}; expected {_abi.DTYPE_NAMES[b.dtype]}"
            + (" or float32" if _abi.DTYPE_SIZE[b.dtype] == 2 else "")
        )
    return wanted


def check_pair(values: Operand, b: Operand, a_name: str, b_name: str) -> None:
    if values.device != b.device:
        raise ValueError(f"{a_name} is on {values.device} and {b_name} on {b.device}; expected one device")
    if values.dtype != b.dtype:
        raise TypeError(
            f"{a_name} has dtype {_abi.DTYPE_NAMES[values.dtype]} and {b_name} {_abi.DTYPE_NAMES[b.dtype]}; "
            "expected one dtype"
        )


def _check_bias(bias: Any, features: int, dtype: int, device: str) -> Operand | None:
    if bias is None:
        return None
    o = _arrays.describe(bias, "bias")
    if o.shape != (features,):
        raise ValueError(f"bias has shape {o.shape}; expected ({features},)")
    if o.dtype != dtype:
        raise TypeError(
            f"bias has dtype {_abi.DTYPE_NAMES[o.dtype]}; expected {_abi.DTYPE_NAMES[dtype]}, that of the "
            "result"
        )
    if o.device != device:
        raise ValueError(f"bias is on {o.device} and the other operands on {device}; expected one device")
    return o if o.strides == (1,) or features < 2 else dense_copy(o, "bias")


def _check_values(values: Operand, pattern: Pattern) -> Operand:
    """Values may have been replaced, or resized in place, since their matrix was made."""
    expected = (pattern.stored_blocks, *pattern.block)
    if values.shape != expected:
        raise ValueError(f"values has shape {values.shape}; expected {expected}")
    if _arrays.is_dense(values):
        return values
    if values.kind == "dlpack":
        raise ValueError(f"values has strides {values.strides}; expected no gaps")
    return dense_copy(values, "values")


# ---- products ----


def product(a: BsrMatrix, b: Any, left: bool, out: Any, options: Options) -> Any:
    """A @ B, or with `left` B @ A, of anything that has memory; no gradients."""
    c, _ = product_with_plan(a, b, left, out, options, False)
    return c


def product_with_plan(a: BsrMatrix, b: Any, left: bool, out: Any, options: Options, keep: bool) -> tuple:
    dense_name, sparse_name = ("A", "B") if left else ("B", "A")
    x, values = _arrays.describe(b, dense_name), _arrays.describe(a._values, f"{sparse_name}.values")
    if len(x.shape) == 0:
        raise ValueError(f"{dense_name} has no dimensions; expected at least 1")
    check_pair(values, x, sparse_name, dense_name)
    values = _check_values(values, a._pattern)
    rows, cols = a.shape
    inner, features = (rows, cols) if left else (cols, rows)
    have = x.shape[-1] if left or len(x.shape) == 1 else x.shape[-2]
    if have != inner:
        raise ValueError(
            f"{dense_name} has shape {x.shape}; expected {inner} {'columns' if left else 'rows'}, for "
            f"{sparse_name} is {rows}x{cols}"
        )
    shape = (
        (*x.shape[:-1], features)
        if left
        else (features,)
        if len(x.shape) == 1
        else (*x.shape[:-2], features, x.shape[-1])
    )
    given = None if out is None else _arrays.check_output(out, "out")
    c_dtype = _check_out_dtype(options.out_dtype, given, x)
    if given is None:
        check_beta(options.beta, out)
        target = _arrays.empty(x, shape, c_dtype)
    else:
        if given.shape != shape:
            raise ValueError(f"out has shape {given.shape}; expected {shape}")
        if given.device != x.device:
            raise ValueError(f"out is on {given.device} and {dense_name} on {x.device}; expected one device")
        target = given
    bias = _check_bias(options.bias, features, c_dtype, x.device)
    plan = None
    if 0 not in shape:
        plan = _run_product(
            a, values, x, target, bias, left, c_dtype, options, dense_name, keep and x.array is b
        )
        if given is not None:
            count_write(out)
    return (out if given is not None else _arrays.finish(target, x)), plan


def count_write(out: Any) -> None:
    """Tells autograd, which counts what is written, so that a backward pass does not take the new values for
    the saved ones."""
    torch = torch_module()
    if torch is not None and isinstance(out, torch.Tensor) and not out.is_inference():
        torch.autograd.graph.increment_version(out)


def _run_product(a, values, x, target, bias, left, c_dtype, options, dense_name, keep):
    for whole in (True, False):
        try:
            c = View(target, left, "out", output=True, whole=whole)
            b = View(x, left, dense_name, whole=whole)
            break
        except ValueError:
            if not left or not whole:
                raise
    # values that had to be copied are new ones at each call
    fixed = a._fixed if values.kind == "dlpack" or values.array is a._values else None
    snapshot = None if fixed is None else fixed.follow(a._values, values.pointer)
    problem = problem_of(
        op=_abi.MATMUL,
        matmul=(a.is_transposed != left, bias is not None, options.activation),
        n=b.cols,
        batch=b.batch,
        a_dtype=values.dtype,
        b_dtype=x.dtype,
        c_dtype=c_dtype,
        b=b.layout,
        c=c.layout,
        a_align=alignment(values.pointer, x.device),
        b_align=alignment(b.operand.pointer, x.device),
        c_align=alignment(target.pointer, x.device),
        alpha=options.alpha,
        beta=options.beta,
        flags=options.flags_for(x) | (0 if fixed is None else _abi.FIXED_VALUES),
    )
    # a copy's address is nobody's
    keep = (
        keep and values.array is a._values and b.operand is x and (bias is None or bias.array is options.bias)
    )
    inputs = values.pointer, b.operand.pointer, *(() if bias is None else (bias.pointer,))
    sparse_name = "B" if left else "A"
    return run(
        a._pattern.kind if fixed is None else fixed,
        problem,
        (*inputs, *index_pointers(a._pattern, x.device)),
        (target.pointer,),
        x,
        {"b": dense_name, "c": "out", "values": sparse_name, "n": dense_name},
        keep,
        snapshot,
    )


# ---- sampled products ----


def sampled_values(x: Any, y: Any, pattern: AnyPattern, alpha: float, allow_tf32: bool | None) -> Any:
    """New values: by a runner, or by the full path, which gives the runner its plan."""
    quick = (
        _quick.runner(pattern, ("sampled", alpha), alpha)
        if allow_tf32 is None and _quick.serves(x, y, indices=pattern.indices)
        else None
    )
    inputs = x, y, *pattern.indices
    values = None if quick is None else quick.run_inside(*inputs)
    if values is None:
        values, made = sampled_with_plan(x, y, pattern, alpha, 0.0, None, allow_tf32, quick is not None)
        _quick.install(quick, inputs, (values,), made)
    return values


def describe_sampled(x_array: Any, y_array: Any, shape: tuple[int, int]) -> tuple[Operand, Operand]:
    x, y = _arrays.describe(x_array, "X"), _arrays.describe(y_array, "Y")
    for o, name in ((x, "X"), (y, "Y")):
        if len(o.shape) != 2:
            raise ValueError(f"{name} has {len(o.shape)} dimensions; expected 2")
    check_pair(x, y, "X", "Y")
    rows, cols = shape
    if x.shape[0] != rows:
        raise ValueError(f"X has {x.shape[0]} rows; the pattern has {rows}")
    if y.shape[1] != cols:
        raise ValueError(f"Y has {y.shape[1]} columns; the pattern has {cols}")
    if x.shape[1] != y.shape[0]:
        raise ValueError(f"X has {x.shape[1]} columns and Y {y.shape[0]} rows; expected as many")
    return x, y


def sampled_with_plan(x_array, y_array, pattern, alpha, beta, out, allow_tf32, keep) -> tuple:
    """The values alone, for a BsrMatrix keeps its indices as tensors, which gradients and operators have no
    use for."""
    x, y = describe_sampled(x_array, y_array, pattern.shape)
    if out is None:
        check_beta(beta, out)
        target = _arrays.empty(x, (pattern.stored_blocks, *pattern.block), x.dtype)
    else:
        target = _check_sampled_out(out, pattern, x)
    plan = None
    if pattern.stored_blocks:
        vx, vy = View(x, False, "X"), View(y, False, "Y")
        problem = problem_of(
            op=_abi.SAMPLED,
            k=x.shape[1],
            a_dtype=x.dtype,
            b_dtype=y.dtype,
            c_dtype=target.dtype,
            a=vx.layout,
            b=vy.layout,
            a_align=alignment(vx.operand.pointer, x.device),
            b_align=alignment(vy.operand.pointer, x.device),
            c_align=alignment(target.pointer, x.device),
            alpha=alpha,
            beta=beta,
            flags=tf32_flag(allow_tf32, x),
        )
        names = {"x": "X", "y": "Y", "values": "out"}
        keep = keep and vx.operand.array is x_array and vy.operand.array is y_array
        inputs = vx.operand.pointer, vy.operand.pointer, *index_pointers(pattern, x.device)
        plan = run(pattern.kind, problem, inputs, (target.pointer,), x, names, keep)
        if out is not None:
            count_write(target.array)
    return _arrays.finish(target, x), plan


def check_is_bsr(out: Any) -> BsrMatrix:
    if not isinstance(out, BsrMatrix):
        raise TypeError(f"out is a {type(out).__name__}; expected a BsrMatrix")
    return out


def _same_pattern(p: AnyPattern, q: AnyPattern) -> bool:
    return p is q or (
        type(p) is type(q)
        and p.shape == q.shape
        and p.block == q.block
        and p.same_indices(q.row_ptr, q.col_idx)
    )


def _check_sampled_out(out: Any, pattern: Pattern, x: Operand) -> Operand:
    if check_is_bsr(out).is_transposed or not _same_pattern(out._pattern, pattern):
        raise ValueError("out has another pattern; expected that of pattern")
    target = _arrays.check_output(out._values, "out")
    if _check_values(target, pattern) is not target:
        raise ValueError(f"out.values has strides {target.strides}; expected no gaps")
    if target.device != x.device:
        raise ValueError(f"out is on {target.device} and X on {x.device}; expected one device")
    _check_out_dtype(None, target, x)
    return target

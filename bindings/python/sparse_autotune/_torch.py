"""PyTorch: operators under ``torch.ops.sparse_autotune``, gradients, and the quick way past the dispatcher.

Three ways lead to the same products. Where nothing but the result is wanted, `_fast.Runner` goes from the
tensors to the plan. Where gradients are wanted in plain eager code, an autograd.Function does. Everything
else (torch.compile, autocast inside it, functorch, tensor subclasses, tracing) goes through the operators,
which take the parts of a matrix as plain tensors and find its pattern by the storages of its indices.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import Tensor

from . import _abi, _context, _ops, _quick, _torch_modes
from ._matrix import BsrMatrix, as_bsr, is_sparse
from ._pattern import Kept, Pattern, alignment
from ._quick import _fast, runner
from ._tangents import ReverseOnly, forward_ad, refuse_tangents, refuse_transforms
from ._torch_modes import watched
from ._torch_patterns import Unchanged, index_tensors, pattern_of

_C = torch._C
_ACTIVATIONS = {
    "none": None,
    "relu": torch.nn.functional.relu,
    "gelu": torch.nn.functional.gelu,
    "silu": torch.nn.functional.silu,
}

if _fast is not None:
    _fast.torch(
        Tensor,
        torch.nn.Parameter,
        Tensor.is_neg,
        torch.is_grad_enabled,
        _C._is_any_autocast_enabled,
        _C._len_torch_dispatch_stack,
        _C._is_tracing,
        _torch_modes.early,
        _torch_modes.before_dispatch,
        torch.get_num_threads,
        getattr(_C, "_cuda_getCurrentRawStream", None),
        getattr(_C, "_get_cublas_allow_tf32", None),
        (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64),
        getattr(Tensor, "__dlpack_c_exchange_api__", None),
    )


# ---- runners ----


def adopt(matrix: BsrMatrix) -> None:
    """Makes a matrix with torch values ready: its runners, and its indices as tensors."""
    matrix._index = index_tensors(matrix._pattern, matrix._values.device)
    _quick.adopt(matrix)


@functools.cache
def _quick_maker(kind: str) -> Any:
    """The function by which torch.compile's own code makes tensors on the CPU or the current GPU, in half of
    empty_like's time, or None: it is torch's own affair, so it must be there and do what is expected of
    it."""
    make = getattr(getattr(getattr(_C, "_dynamo", None), "guards", None), f"_empty_strided_{kind}", None)
    try:
        made = make((2, 3), (1, 4), torch.float32)
        return (
            make
            if (made.shape, made.stride(), made.dtype, made.device.type)
            == ((2, 3), (1, 4), torch.float32, kind)
            else None
        )
    except (AttributeError, TypeError, RuntimeError):
        return None


def _maker(result: Tensor) -> tuple[Any, tuple]:
    """What makes tensors like this one, and with what arguments."""
    shape, strides, device = tuple(result.shape), result.stride(), result.device
    quick = _quick_maker(device.type)
    if quick is not None and (device.type == "cpu" or device.index == torch.cuda.current_device()):
        return quick, (shape, strides, result.dtype)
    return functools.partial(torch.empty_strided, dtype=result.dtype, device=device), (shape, strides)


def forward(
    pattern: Pattern,
    values: Tensor,
    transposed: bool,
    b: Tensor,
    left: bool,
    bias: Tensor | None,
    activation: int,
    alpha: float,
    tf32: bool | None = None,
) -> Tensor:
    """The product of plain tensors, without gradients: by a runner, or the long way, which gives the runner
    its plan. `tf32`: None is what torch is set to, which a runner asks about."""
    if forward_ad._current_level >= 0:
        refuse_tangents(values, b, bias)
    quick = (
        None
        if tf32 is not None
        else runner(pattern, (transposed, left, activation, alpha, bias is not None), alpha)
    )
    inputs = (values, b) if bias is None else (values, b, bias)
    result = None if quick is None else quick.run(*inputs)
    if result is not None:
        return result
    result, made = _ops.product_with_plan(
        _bare(pattern, values, transposed),
        b,
        left,
        None,
        _options(alpha, bias, activation, tf32),
        quick is not None,
    )
    if quick is not None:
        install(quick, inputs, result, made)
    return result


def _options(alpha: float, bias: Any, activation: int, tf32: bool | None = None) -> _ops.Options:
    options = _ops.Options(alpha, 0.0, bias, allow_tf32=tf32)
    options.activation = activation
    return options


@functools.cache
def _watch_captures() -> None:
    """Gives the quick way the driver's question whether a stream is being captured, once a GPU is in use."""
    question = _context.driver_function("cuStreamIsCapturing")
    if question is not None:
        _fast.driver(_abi.address(question))


def install(quick: Any, inputs: tuple, result: Tensor | None, made: Kept | None) -> None:
    """As _quick.install, of tensors."""
    if made is None:
        return
    first = inputs[0]
    if first.is_cuda:
        _watch_captures()
    tf32 = int(bool(first.is_cuda and first.dtype == torch.float32 and _ops.torch_allows_tf32()))
    aligned = [alignment(t.data_ptr(), str(t.device)) for t in inputs]
    if result is None:
        aligned, make, like = [*aligned, 1], None, ()
    else:
        aligned, (make, like) = [*aligned, alignment(result.data_ptr(), str(result.device))], _maker(result)
        if len(inputs) == 3 and inputs[2].dim() == 1:  # a bias
            aligned[2] = first.element_size()
    quick.add(inputs, tuple(aligned), make, like, made.stream, made.threads, tf32, made.plan.handle, made)


_quick.torch_types, _quick.install_torch = (Tensor, torch.nn.Parameter), install


def forward_sampled(x: Tensor, y: Tensor, pattern: Pattern, alpha: float, tf32: bool | None = None) -> Tensor:
    if forward_ad._current_level >= 0:
        refuse_tangents(x, y)
    return _ops.sampled_values(x, y, pattern, alpha, tf32)


# ---- gradients, written once for both ways ----


def _fold(t: Tensor) -> Tensor:
    """(..., rows, n) as (rows, everything else)."""
    return (
        t.unsqueeze(-1)
        if t.dim() == 1
        else t
        if t.dim() == 2
        else t.movedim(-2, 0).reshape(t.shape[-2], math.prod(t.shape[:-2]) * t.shape[-1])
    )


def _rows(t: Tensor) -> Tensor:
    """(..., n) as (everything else, n)."""
    return (
        t
        if t.dim() == 2
        else t.unsqueeze(0)
        if t.dim() == 1
        else t.reshape(math.prod(t.shape[:-1]), t.shape[-1])
    )


def _product_grads(
    needs: tuple,
    values: Tensor,
    b: Tensor,
    grad: Tensor,
    bias_dtype: Any,
    transposed: bool,
    left: bool,
    alpha: float,
    product: Any,
    sample: Any,
) -> tuple:
    """Gradients of values, b and bias. `product(values, b, transposed, left, alpha)` and `sample(x, y,
    alpha)` are given."""
    d_values = d_b = d_bias = None
    g = grad if grad.dtype == b.dtype else grad.to(b.dtype)
    if needs[1]:
        d_b = product(values, g, not transposed, left, alpha)
    if needs[0]:
        if left:
            x, y = _rows(b), _rows(g)
            d_values = sample(y.t(), x, alpha) if transposed else sample(x.t(), y, alpha)
        else:
            x, y = _fold(g), _fold(b)
            d_values = sample(y, x.t(), alpha) if transposed else sample(x, y.t(), alpha)
    if needs[2]:
        d_bias = _rows(grad).sum(0) if left else _fold(grad).sum(1)
        if d_bias.dtype != bias_dtype:
            d_bias = d_bias.to(bias_dtype)
    return d_values, d_b, d_bias


class _Product(ReverseOnly):
    @staticmethod
    def forward(ctx, values, b, bias, pattern, transposed, left, alpha, tf32=None):
        ctx.save_for_backward(values, b)
        ctx.facts = (pattern, transposed, left, alpha, None if bias is None else bias.dtype, tf32)
        return forward(pattern, values, transposed, b, left, bias, 0, alpha, tf32)

    @staticmethod
    def backward(ctx, grad):
        values, b = ctx.saved_tensors
        pattern, transposed, left, alpha, bias_dtype, tf32 = ctx.facts
        # the usual backward pass: asked once for all of it
        if not torch.is_grad_enabled() and _plain(values, b, grad):

            def product(v, x, t, side, s):
                return forward(pattern, v, t, x, side, None, 0, s, tf32)

            def sample(x, y, s):
                return forward_sampled(x, y, pattern, s, tf32)
        else:

            def product(v, x, t, side, s):
                return differentiable(pattern, v, x, None, t, side, s, tf32)

            def sample(x, y, s):
                return differentiable_sampled(x, y, pattern, s, tf32)

        return (
            *_product_grads(
                ctx.needs_input_grad, values, b, grad, bias_dtype, transposed, left, alpha, product, sample
            ),
            None,
            None,
            None,
            None,
            None,
        )


class _Sampled(ReverseOnly):
    @staticmethod
    def forward(ctx, x, y, pattern, alpha, tf32=None):
        ctx.save_for_backward(x, y)
        ctx.facts = (pattern, alpha, tf32)
        return forward_sampled(x, y, pattern, alpha, tf32)

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        pattern, alpha, tf32 = ctx.facts
        d_x = d_y = None
        if ctx.needs_input_grad[0]:
            d_x = differentiable(pattern, grad.contiguous(), y.t(), None, False, False, alpha, tf32)
        if ctx.needs_input_grad[1]:
            d_y = differentiable(pattern, grad.contiguous(), x.t(), None, False, True, alpha, tf32)
        return d_x, d_y, None, None, None


def _bare(pattern: Pattern, values: Tensor, transposed: bool) -> BsrMatrix:
    """A matrix for use inside, without what adopt() gives."""
    matrix = BsrMatrix.__new__(BsrMatrix)
    matrix._pattern, matrix._values, matrix._transposed, matrix._torch = pattern, values, transposed, True
    return matrix


def _no_tf32(tf32: bool | None, b: Tensor) -> None:
    """Operators do as torch is set to."""
    if tf32 is not None and b.dtype == torch.float32:
        raise NotImplementedError(
            f"allow_tf32 is {tf32}; where torch traces, and for tensors that are not plain ones, only None "
            "is offered, which is what torch is set to"
        )


def differentiable(
    pattern: Pattern,
    values: Tensor,
    b: Tensor,
    bias: Tensor | None,
    transposed: bool,
    left: bool,
    alpha: float,
    tf32: bool | None = None,
) -> Tensor:
    """The product in plain eager code, with a gradient where one is wanted; what backward passes are given
    may not be plain."""
    if not _plain(values, b, bias):
        _no_tf32(tf32, b)
        return torch.ops.sparse_autotune.matmul(
            values,
            *index_tensors(pattern, values.device),
            b,
            bias,
            list(pattern.shape),
            transposed,
            left,
            alpha,
        )
    if torch.is_grad_enabled() and (
        values.requires_grad or b.requires_grad or (bias is not None and bias.requires_grad)
    ):
        return _Product.of_plain(values, b, bias, pattern, transposed, left, alpha, tf32)
    return forward(pattern, values, transposed, b, left, bias, 0, alpha, tf32)


def differentiable_sampled(
    x: Tensor,
    y: Tensor,
    pattern: Pattern,
    alpha: float,
    tf32: bool | None = None,
) -> Tensor:
    if not _plain(x, y):
        _no_tf32(tf32, x)
        return torch.ops.sparse_autotune.sampled(
            x, y, *index_tensors(pattern, x.device), list(pattern.shape), list(pattern.block), alpha
        )
    if torch.is_grad_enabled() and (x.requires_grad or y.requires_grad):
        return _Sampled.of_plain(x, y, pattern, alpha, tf32)
    return forward_sampled(x, y, pattern, alpha, tf32)


# ---- operators ----

_library = torch.library.Library("sparse_autotune", "DEF")
_tags = (torch.Tag.pt2_compliant_tag,)
_library.define(
    "matmul(Tensor values, Tensor row_ptr, Tensor col_idx, Tensor b, Tensor? bias, int[] shape, bool "
    "transpose=False, "
    "bool left=False, float alpha=1.0, str activation='none') -> Tensor",
    tags=_tags,
)
_library.define(
    "sampled(Tensor x, Tensor y, Tensor row_ptr, Tensor col_idx, int[] shape, int[] block, float alpha=1.0) "
    "-> Tensor",
    tags=_tags,
)


def _matmul_impl(
    values,
    row_ptr,
    col_idx,
    b,
    bias,
    shape,
    transpose=False,
    left=False,
    alpha=1.0,
    activation="none",
):
    if values.dim() != 3:
        raise ValueError(
            f"values has {values.dim()} dimensions; expected 3: stored blocks, block rows, block columns"
        )
    pattern = pattern_of(row_ptr, col_idx, tuple(shape), tuple(values.shape[1:]))
    if values.shape[0] != pattern.stored_blocks:
        raise ValueError(f"values has {values.shape[0]} blocks; col_idx has {pattern.stored_blocks}")
    with torch.no_grad():
        return forward(
            pattern, values.contiguous(), transpose, b, left, bias, _ops.activation_code(activation), alpha
        )


def _sampled_impl(x, y, row_ptr, col_idx, shape, block, alpha=1.0):
    with torch.no_grad():
        return forward_sampled(x, y, pattern_of(row_ptr, col_idx, tuple(shape), tuple(block)), alpha)


for _key in ("CPU", "CUDA"):
    _library.impl("matmul", _matmul_impl, _key)
    _library.impl("sampled", _sampled_impl, _key)


def _check_meta(first, name, **others):
    """One operand on meta sends a call here, and what the others hold would be lost."""
    for other, t in others.items():
        same = t is None or (t.device.type == "meta") == (first.device.type == "meta")
        torch._check(
            same, lambda: f"{other} is on {t.device} and {name} on {first.device}; expected one device"
        )


def _check_product(values, row_ptr, col_idx, b, bias, shape, transpose, left):
    torch._check(values.dim() == 3, lambda: f"values has {values.dim()} dimensions; expected 3")
    torch._check(
        values.shape[1] > 0 and values.shape[2] > 0,
        lambda: f"values has blocks of {values.shape[1]}x{values.shape[2]}; expected sides of at least 1",
    )
    torch._check(len(shape) == 2, lambda: f"shape has {len(shape)} entries; expected 2")
    torch._check(
        row_ptr.dim() == 1 and col_idx.dim() == 1, lambda: "row_ptr and col_idx must have 1 dimension"
    )
    torch._check(b.dim() >= 1, lambda: "b has no dimensions; expected at least 1")
    torch._check(
        values.dtype == b.dtype,
        lambda: f"values has dtype {values.dtype} and b {b.dtype}; expected one dtype",
    )
    torch._check(
        values.device == b.device,
        lambda: f"values is on {values.device} and b on {b.device}; expected one device",
    )
    _check_meta(values, "values", row_ptr=row_ptr, col_idx=col_idx, bias=bias)
    torch._check(
        values.shape[0] == col_idx.shape[0],
        lambda: f"values has {values.shape[0]} blocks and col_idx {col_idx.shape[0]}; expected as many",
    )
    rows, cols = (shape[1], shape[0]) if transpose else (shape[0], shape[1])
    inner, features = (rows, cols) if left else (cols, rows)
    have = b.shape[-1] if left or b.dim() == 1 else b.shape[-2]
    torch._check(
        have == inner,
        lambda: f"b has shape {tuple(b.shape)}; expected {inner} {'columns' if left else 'rows'}",
    )
    torch._check(
        bias is None or tuple(bias.shape) == (features,), lambda: f"bias must have shape ({features},)"
    )
    return features


@torch.library.register_fake("sparse_autotune::matmul", lib=_library)
def _matmul_fake(
    values,
    row_ptr,
    col_idx,
    b,
    bias,
    shape,
    transpose=False,
    left=False,
    alpha=1.0,
    activation="none",
):
    features = _check_product(values, row_ptr, col_idx, b, bias, shape, transpose, left)
    if left:
        return b.new_empty((*b.shape[:-1], features))
    return b.new_empty((features,)) if b.dim() == 1 else b.new_empty((*b.shape[:-2], features, b.shape[-1]))


@torch.library.register_fake("sparse_autotune::sampled", lib=_library)
def _sampled_fake(x, y, row_ptr, col_idx, shape, block, alpha=1.0):
    torch._check(x.dim() == 2 and y.dim() == 2, lambda: "x and y must have 2 dimensions")
    torch._check(x.dtype == y.dtype, lambda: f"x has dtype {x.dtype} and y {y.dtype}; expected one dtype")
    _check_meta(x, "x", y=y, row_ptr=row_ptr, col_idx=col_idx)
    torch._check(x.shape[0] == shape[0], lambda: f"x has {x.shape[0]} rows; expected {shape[0]}")
    torch._check(y.shape[1] == shape[1], lambda: f"y has {y.shape[1]} columns; expected {shape[1]}")
    torch._check(
        x.shape[1] == y.shape[0],
        lambda: f"x has {x.shape[1]} columns and y {y.shape[0]} rows; expected as many",
    )
    return x.new_empty((col_idx.shape[0], block[0], block[1]))


def _matmul_setup(ctx, inputs, output):
    values, row_ptr, col_idx, b, bias, shape, transpose, left, alpha, activation = inputs
    # As _Product does: with activation checkpointing a mode may see only one of the two.
    ctx.save_for_backward(values, b, *(() if activation == "none" else (bias,)))
    ctx.index = Unchanged(row_ptr, col_idx)
    ctx.facts = (list(shape), transpose, left, alpha, activation, None if bias is None else bias.dtype)


def _matmul_backward(ctx, grad):
    values, b, *bias = ctx.saved_tensors
    row_ptr, col_idx = ctx.index.get()
    shape, transpose, left, alpha, activation, bias_dtype = ctx.facts
    block = list(values.shape[1:])

    def product(v, x, t, side, s):
        return torch.ops.sparse_autotune.matmul(v, row_ptr, col_idx, x, None, shape, t, side, s)

    def sample(x, y, s):
        return torch.ops.sparse_autotune.sampled(x, y, row_ptr, col_idx, shape, block, s)

    if activation != "none":  # the value before it, and what the activation makes of the gradient there
        before = torch.ops.sparse_autotune.matmul(
            values, row_ptr, col_idx, b, *bias, shape, transpose, left, alpha
        )
        grad = grad * _slope(activation, before)
    needs = (ctx.needs_input_grad[0], ctx.needs_input_grad[3], ctx.needs_input_grad[4])
    d_values, d_b, d_bias = _product_grads(
        needs, values, b, grad, bias_dtype, transpose, left, alpha, product, sample
    )
    return d_values, None, None, d_b, d_bias, None, None, None, None, None


def _slope(activation: str, z: Tensor) -> Tensor:
    if activation == "relu":
        return (~(z <= 0)).to(z.dtype)  # NaN lets it through, as torch's does
    if activation == "silu":
        s = torch.sigmoid(z)
        return s * (1 + z * (1 - s))
    return 0.5 * (1 + torch.erf(z * 0.5**0.5)) + z * torch.exp(-0.5 * z * z) * (2 * torch.pi) ** -0.5


def _sampled_setup(ctx, inputs, output):
    x, y, row_ptr, col_idx, shape, block, alpha = inputs
    ctx.save_for_backward(x, y)  # as _Sampled does
    ctx.index, ctx.facts = Unchanged(row_ptr, col_idx), (list(shape), alpha)


def _sampled_backward(ctx, grad):
    x, y = ctx.saved_tensors
    (row_ptr, col_idx), (shape, alpha) = ctx.index.get(), ctx.facts
    d_x = d_y = None
    g = grad.contiguous()
    if ctx.needs_input_grad[0]:
        d_x = torch.ops.sparse_autotune.matmul(g, row_ptr, col_idx, y.t(), None, shape, False, False, alpha)
    if ctx.needs_input_grad[1]:
        d_y = torch.ops.sparse_autotune.matmul(g, row_ptr, col_idx, x.t(), None, shape, False, True, alpha)
    return d_x, d_y, None, None, None, None, None


torch.library.register_autograd(
    "sparse_autotune::matmul", _matmul_backward, setup_context=_matmul_setup, lib=_library
)
torch.library.register_autograd(
    "sparse_autotune::sampled", _sampled_backward, setup_context=_sampled_setup, lib=_library
)


def _matmul_vmap(
    info,
    in_dims,
    values,
    row_ptr,
    col_idx,
    b,
    bias,
    shape,
    transpose=False,
    left=False,
    alpha=1.0,
    activation="none",
):
    """A batch of b is one product; anything else that is batched is done one by one."""
    product = torch.ops.sparse_autotune.matmul
    if in_dims[3] is not None and all(d is None for i, d in enumerate(in_dims[:5]) if i != 3):
        b = b.movedim(in_dims[3], 0)
        if not left and b.dim() == 2:  # vectors: A @ b of each is b @ A.T of all
            return product(
                values, row_ptr, col_idx, b, bias, shape, not transpose, True, alpha, activation
            ), 0
        return product(values, row_ptr, col_idx, b, bias, shape, transpose, left, alpha, activation), 0
    items = [
        [t if d is None else t.select(d, i) for t, d in zip((values, row_ptr, col_idx, b, bias), in_dims)]
        for i in range(info.batch_size)
    ]
    return torch.stack([product(*item, shape, transpose, left, alpha, activation) for item in items]), 0


def _sampled_vmap(info, in_dims, x, y, row_ptr, col_idx, shape, block, alpha=1.0):
    items = [
        [t if d is None else t.select(d, i) for t, d in zip((x, y, row_ptr, col_idx), in_dims)]
        for i in range(info.batch_size)
    ]
    return torch.stack([torch.ops.sparse_autotune.sampled(*item, shape, block, alpha) for item in items]), 0


torch.library.register_vmap("sparse_autotune::matmul", _matmul_vmap, lib=_library)
torch.library.register_vmap("sparse_autotune::sampled", _sampled_vmap, lib=_library)


def autocasts(t: Tensor) -> bool:
    kind = t.device.type
    return kind != "meta" and torch.is_autocast_enabled(kind)  # which raises for devices that have none


def _autocast(device: str, *tensors: Tensor | None) -> tuple:
    """The tensors as autocast wants them: float32 and 16 bits become its dtype, doubles stay, and what is on
    another device."""
    dtype = torch.get_autocast_dtype(device)
    return tuple(
        t
        if t is None or t.device.type != device or not t.is_floating_point() or t.dtype == torch.float64
        else t.to(dtype)
        for t in tensors
    )


def _register_autocast(device: str, key: str) -> None:
    excluded = _C.DispatchKeySet(getattr(_C.DispatchKey, key))

    def matmul(
        values,
        row_ptr,
        col_idx,
        b,
        bias,
        shape,
        transpose=False,
        left=False,
        alpha=1.0,
        activation="none",
    ):
        with _C._ExcludeDispatchKeyGuard(excluded):
            values, b, bias = _autocast(device, values, b, bias)
            return torch.ops.sparse_autotune.matmul(
                values, row_ptr, col_idx, b, bias, shape, transpose, left, alpha, activation
            )

    def sampled(x, y, row_ptr, col_idx, shape, block, alpha=1.0):
        with _C._ExcludeDispatchKeyGuard(excluded):
            x, y = _autocast(device, x, y)
            return torch.ops.sparse_autotune.sampled(x, y, row_ptr, col_idx, shape, block, alpha)

    _library.impl("matmul", matmul, key)
    _library.impl("sampled", sampled, key)


_register_autocast("cpu", "AutocastCPU")
_register_autocast("cuda", "AutocastCUDA")


# ---- what matmul and sampled_matmul call ----


def may_fuse() -> bool:
    """Whether an operator may do the activation, too: without gradients, and not where torch.jit.trace
    compares traces with and without."""
    return not torch.is_grad_enabled() and (torch.compiler.is_compiling() or not _C._is_tracing())


def _through_operator(
    a: BsrMatrix,
    b: Tensor,
    left: bool,
    bias: Tensor | None,
    activation: str,
    alpha: float,
) -> Tensor:
    fused = activation == "none" or may_fuse()
    row_ptr, col_idx = a._index
    result = torch.ops.sparse_autotune.matmul(
        a._values,
        row_ptr,
        col_idx,
        b,
        bias,
        a._pattern.shape,
        a._transposed,
        left,
        alpha,
        activation if fused else "none",
    )
    return result if fused else _ACTIVATIONS[activation](result)


def _into(
    a: BsrMatrix,
    b: Tensor,
    left: bool,
    bias: Tensor | None,
    activation: str,
    alpha: float,
    out: Any,
    beta: float,
) -> Tensor:
    """The product through the operator, into out where there is one; the activation waits for beta * out."""
    _ops.check_beta(beta, out)
    if out is None:
        return _through_operator(a, b, left, bias, activation, alpha)
    if not isinstance(out, Tensor):
        raise TypeError(
            f"out is a {type(out).__name__}; expected a torch tensor, as {'A' if left else 'B'} is"
        )
    result = _through_operator(a, b, left, bias, "none" if beta != 0 else activation, alpha)
    if out.shape != result.shape:
        raise ValueError(f"out has shape {tuple(out.shape)}; expected {tuple(result.shape)}")
    if out.dtype != result.dtype and not (out.dtype == torch.float32 and result.dtype.itemsize == 2):
        raise TypeError(f"out has dtype {out.dtype}; expected {result.dtype}")
    if out.device != result.device:
        raise ValueError(f"out is on {out.device} and the operands on {result.device}; expected one device")
    if beta != 0:
        result = result + beta * out
        result = result if activation == "none" else _ACTIVATIONS[activation](result)
    return out.copy_(result)


def _matmul_compiled(A, B, bias, activation, alpha, out, beta, out_dtype):
    """matmul as torch.compile traces it: no Python that it cannot follow."""
    left = not isinstance(A, BsrMatrix)
    a, b = (B, A) if left else (A, B)
    if not isinstance(a, BsrMatrix) or not a._torch or not isinstance(b, Tensor):
        raise TypeError(
            "A or B: inside torch.compile one is a BsrMatrix with torch values, and the other a torch tensor"
        )
    if out_dtype is not None:
        raise NotImplementedError("out_dtype is not offered inside torch.compile")
    for x, name in ((alpha, "alpha"), (beta, "beta")):
        if isinstance(x, Tensor):
            raise TypeError(f"{name} is a tensor; inside torch.compile a number is expected")
    if bias is not None and not isinstance(bias, Tensor):
        raise TypeError("bias: inside torch.compile a torch tensor is expected")
    return _into(a, b, left, bias, activation or "none", alpha, out, beta)


def _plain(*tensors: Any) -> bool:
    """Whether these tensors can go past the dispatcher. All eager calls ask, so what torch.func cannot have
    is refused here."""
    if _C._functorch.peek_interpreter_stack() is not None:
        refuse_transforms(*tensors)
        return False
    for t in tensors:
        if t is None:
            continue
        if (
            (type(t) is not Tensor and type(t) is not torch.nn.Parameter)
            or _C._functorch.is_legacy_batchedtensor(t)
            or _C._functorch.is_functorch_wrapped_tensor(t)
        ):
            return False  # wrapped: what a transform that has ended left behind
    return not watched()


def _with_torch_values(a: BsrMatrix) -> BsrMatrix:
    if a._torch:
        return a
    return BsrMatrix._make(
        a._pattern,
        torch.as_tensor(a._values) if not hasattr(a._values, "__dlpack__") else torch.from_dlpack(a._values),
        a._transposed,
    )


def _matmul(A, B, bias, activation, alpha, out, beta, out_dtype, options=None):
    if options is None:
        return _matmul_compiled(A, B, bias, activation, alpha, out, beta, out_dtype)
    left = not is_sparse(A)
    a, b = (as_bsr(B, "B"), A) if left else (as_bsr(A, "A"), B)
    _ops.check_beta(options.beta, out)
    a = _with_torch_values(a)
    kind = b.device.type
    if autocasts(b):
        with torch.autocast(kind, enabled=False):
            values, b, bias = _autocast(kind, a._values, b, bias)
            if bias is not None and isinstance(out, Tensor) and out.dtype == torch.float32:
                bias = bias.float()  # that of the result
            pair = (b, a.with_values(values)) if left else (a.with_values(values), b)
            return _ops.matmul(
                *pair,
                out=out,
                alpha=alpha,
                beta=beta,
                bias=bias,
                activation=activation,
                out_dtype=out_dtype,
                allow_tf32=options.tf32,
                allow_dense=bool(options.flags & _abi.ALLOW_DENSE),
                deterministic=not options.flags & _abi.ALLOW_NONDETERMINISTIC,
            )
    word = activation or "none"
    if not _plain(a._values, b, bias, out):
        if out_dtype is not None:
            raise NotImplementedError(
                "out_dtype is not offered where torch traces, nor for tensors that are not plain ones"
            )
        _no_tf32(options.tf32, b)
        return _into(a, b, left, bias, word, options.alpha, out, options.beta)
    if out is None and out_dtype is None and torch.is_grad_enabled():
        result = differentiable(
            a._pattern, a._values, b, bias, a._transposed, left, options.alpha, options.tf32
        )
        return result if options.activation == 0 else _ACTIVATIONS[word](result)
    if torch.is_grad_enabled() and (
        b.requires_grad or a.requires_grad or (bias is not None and bias.requires_grad)
    ):
        raise RuntimeError(
            "out_dtype is given, and A, B or bias requires grad: gradients do not flow through it"
        )
    return _ops.product(a, b, left, out, options)


def eager(a: BsrMatrix, b: Tensor, left: bool, options: _ops.Options) -> Tensor:
    """matmul's plain torch case: exact tensors, no gradient, a new result."""
    return forward(
        a._pattern, a._values, a._transposed, b, left, options.bias, options.activation, options.alpha
    )


def _gradient(A, B):
    """matmul's plain torch case where a gradient is wanted, without all the questions above; None: it is
    another case."""
    left = type(A) is not BsrMatrix
    a, b = (B, A) if left else (A, B)
    if type(a) is not BsrMatrix or not a._torch or not torch.is_grad_enabled() or not isinstance(b, Tensor):
        return None
    values = a._values
    if (
        not (values.requires_grad or b.requires_grad)
        or b.layout is not torch.strided
        or b.is_nested
        or _C._is_any_autocast_enabled()
    ):
        return None
    return (
        _Product.of_plain(values, b, None, a._pattern, a._transposed, left, 1.0)
        if _plain(values, b)
        else None
    )


def _sampled(X, Y, pattern, alpha, out, beta, tf32=None):
    compiling = torch.compiler.is_compiling()
    if compiling and not (isinstance(pattern, BsrMatrix) and pattern._torch):
        raise TypeError("pattern: inside torch.compile a BsrMatrix with torch values is expected")
    a = pattern if isinstance(pattern, BsrMatrix) else as_bsr(pattern, "pattern")
    if out is not None:
        raise RuntimeError(
            "out is given, and X or Y needs gradients, autocast or tracing, which do not go through out"
        )
    for x, name in ((X, "X"), (Y, "Y")):
        if not isinstance(x, Tensor):
            raise TypeError(f"{name} is a {type(x).__name__}; expected a torch tensor, as the other one is")
    if not compiling:
        alpha, beta = _ops._number(alpha, "alpha"), _ops._number(beta, "beta")
    _ops.check_beta(beta, out)
    x, y = (Y.t(), X.t()) if a._transposed else (X, Y)
    if compiling or not _plain(x, y) or autocasts(x):
        if not autocasts(x):
            _no_tf32(tf32, x)
        values = torch.ops.sparse_autotune.sampled(
            x, y, *index_tensors(a._pattern, x.device), a._pattern.shape, a._pattern.block, alpha
        )
    else:
        values = differentiable_sampled(x, y, a._pattern, alpha, tf32)
    return BsrMatrix._make(a._pattern, values, a._transposed)


_ops._watched = watched
# cheaper than is_compiling; torch.export without dynamo brings fake tensors
_ops._compiling = torch.compiler.is_dynamo_compiling
_ops._torch_matmul = _matmul
_ops._torch_sampled = _sampled
_ops._torch_eager = eager
_ops._torch_gradient = _gradient
_ops._forward_ad, _ops._refuse_tangents = forward_ad, refuse_tangents
# There is no __torch_function__ on BsrMatrix: torch.compile (2.11) swaps the sides of `A @ b` when it finds
# one. Without it the operator @ breaks the graph, which is slower and right; sparse_autotune.matmul(A, b) is
# traced.

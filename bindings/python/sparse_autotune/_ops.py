"""The products: from whatever came in to one problem, and a plan that runs it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from . import _abi, _arrays, _quick
from ._arrays import refuse_nested, torch_module
from ._matrix import BsrMatrix
from ._pattern import Pattern
from ._products import (
    Options,
    check_is_bsr,
    count_write,
    describe_sampled,
    number,
    product,
    product_with_plan,
    sampled_values,
    sampled_with_plan,
)
from ._sparse import as_bsr, is_sparse, is_sparse_tensor, uncompiled

# Set by _torch.calls once torch is there.
_compiling = bool  # torch.compiler.is_dynamo_compiling; bool() is False
_surrounded = bool  # _torch.modes.surrounded: whether autocast, a mode, a trace or a transform is active
_torch_matmul: Any = None
_torch_sampled: Any = None
_torch_eager: Any = None
_torch_gradient: Any = None
_refuse_tangents: Any = None
# Becomes torch.autograd.forward_ad. The level is -1 where no dual tensor can exist.
_forward_ad: Any = SimpleNamespace(_current_level=-1)


def matmul(
    A: Any,
    B: Any,
    *,
    out: Any = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    bias: Any = None,
    activation: str | None = None,
    out_dtype: Any = None,
    allow_tf32: bool | None = None,
    allow_dense: bool = False,
    deterministic: bool = True,
) -> Any:
    """``activation(alpha * A @ B + beta * out + bias)``, where one of A and B is block-sparse and the other
    dense.

    The sparse one is a BsrMatrix, a `torch.sparse_bsr` or `sparse_csr` tensor (or `sparse_bsc`, `sparse_csc`)
    or a SciPy BSR, CSR or CSC matrix; single elements are blocks of 1x1. The dense one is a torch, NumPy,
    CuPy or DLPack array on the CPU or a GPU, of any strides. The result is of the dense one's kind, on its
    device.

    - ``A @ B`` with a sparse A takes B of shape (k,), (k, n) or (..., k, n); ``bias`` has one value for each
      row of the result.
    - ``A @ B`` with a sparse B takes A of shape (k,) or (..., k); ``bias`` has one value for each column.
    - ``out`` is written to and returned; ``beta`` is for what it held. It may be float32 beside 16-bit
      operands, as with ``out_dtype="float32"``.
    - ``activation`` is "relu", "gelu", "silu" or None.
    - ``allow_tf32``: float32 may be rounded to TF32; by default what torch is set to, for torch tensors.
    - ``allow_dense``: bare dense products may win too; their result differs where B holds Inf
      or NaN.
    - ``deterministic=False`` lets variants take part whose rounding depends on timing.

    Gradients flow to torch values, to B and to bias, through everything but `out`; numbers get none. They are
    reverse-mode.

    >>> import numpy as np, sparse_autotune as sa
    >>> A = sa.BsrMatrix.from_dense(np.diag([1.0, 2.0, 3.0, 4.0]), block=2)
    >>> B = np.ones((4, 2))
    >>> sa.matmul(A, B, alpha=2.0)
    array([[2., 2.],
           [4., 4.],
           [6., 6.],
           [8., 8.]])
    >>> sa.matmul(B.T, A)
    array([[1., 2., 3., 4.],
           [1., 2., 3., 4.]])
    """
    if _compiling():
        if allow_tf32 is not None:
            raise NotImplementedError(
                "allow_tf32 is not offered inside torch.compile, which does as torch is set to"
            )
        return _torch_matmul(A, B, bias, activation, alpha, out, beta, out_dtype)
    # The fast path, where only the product of torch tensors is asked for. The rest comes below.
    usual = (
        type(alpha) is float
        and alpha == 1.0
        and type(beta) is float
        and beta == 0.0
        and not allow_dense
        and deterministic
        and allow_tf32 is None
    )
    if usual and bias is None and activation is None and out_dtype is None and _forward_ad._current_level < 0:
        if out is not None:
            result = _run_into(A, B, out)
        elif type(A) is BsrMatrix:
            result = A._runner(A._values, B)
        else:
            result = B._left_runner(B._values, A) if type(B) is BsrMatrix else None
        if result is not None:
            return result
        _abi.raise_interrupt()
        if out is None and _torch_gradient is not None:
            result = _torch_gradient(A, B)
            if result is not None:
                return result
    left = not is_sparse(A)
    if left and not is_sparse(B):
        raise TypeError(
            f"A is a {type(A).__name__} and B a {type(B).__name__}; expected one of them to be a BsrMatrix, "
            "a sparse tensor of torch or a SciPy BSR, CSR or CSC matrix"
        )
    if not left and is_sparse(B):
        raise NotImplementedError("A and B are both sparse; expected one of them to be dense")
    if not isinstance(B if left else A, BsrMatrix):
        words = {
            "out": out,
            "alpha": alpha,
            "beta": beta,
            "bias": bias,
            "activation": activation,
            "out_dtype": out_dtype,
            "allow_tf32": allow_tf32,
            "allow_dense": allow_dense,
            "deterministic": deterministic,
        }
        if is_sparse_tensor(B if left else A):
            return _matmul_of_tensor(A, B, left, words)
        return matmul(*((A, as_bsr(B, "B")) if left else (as_bsr(A, "A"), B)), **words)
    a, b = (B, A) if left else (A, B)
    options = Options(alpha, beta, bias, activation, out_dtype, allow_tf32, allow_dense, deterministic)
    torch = torch_module()
    for x, name in ((b, "A" if left else "B"), (bias, "bias"), (out, "out")):
        refuse_nested(torch, x, name)
    if (
        torch is not None
        and isinstance(b, torch.Tensor)
        and bias is not None
        and not isinstance(bias, torch.Tensor)
    ):
        raise TypeError(
            f"bias is a {type(bias).__name__}; expected a torch tensor, as {'A' if left else 'B'} is"
        )
    _meet_torch(torch, b, out, bias)
    if torch is not None and _torch_matmul is not None and wants_torch(torch, a, b, out, bias, "bias"):
        return _torch_matmul(A, B, bias, activation, alpha, out, beta, out_dtype, options)
    usual = out_dtype is None and options.beta == 0 and options.flags == 0 and allow_tf32 is None
    if usual and out is None and a._torch and _torch_eager is not None and isinstance(b, torch.Tensor):
        return _torch_eager(a, b, left, options)
    if usual and out is None and isinstance(b, _arrays.np.ndarray) and _quick.serves(a._values, b):
        return _numpy_product(a, b, left, options)
    if (
        usual
        and out is not None
        and bias is None
        and options.activation == 0
        and options.alpha == 1
        and _quick.serves(a._values, b, out, indices=a._pattern.indices)
    ):
        return _product_into(a, b, left, out, options)
    return product(a, b, left, out, options)


def _run_into(A: Any, B: Any, out: Any) -> Any:
    if type(A) is BsrMatrix:
        result = A._into(A._values, B, out)
    else:
        result = B._left_into(B._values, A, out) if type(B) is BsrMatrix else None
    if result is not None:
        count_write(out)
    return result


bsr_gemm = matmul


@uncompiled
def _matmul_of_tensor(A: Any, B: Any, left: bool, words: dict) -> Any:
    pair = (A, as_bsr(B, "B", outside=True)) if left else (as_bsr(A, "A", outside=True), B)
    return matmul(*pair, **words)


def sampled_matmul(
    X: Any,
    Y: Any,
    pattern: Any,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    allow_tf32: bool | None = None,
) -> BsrMatrix:
    """``X @ Y``, computed only at the stored blocks of `pattern`: a BsrMatrix with that pattern and values of
    X's kind.

    `out`, a BsrMatrix of that pattern, takes ``alpha * (X @ Y) + beta * out`` instead of a new one.

    >>> import numpy as np, sparse_autotune as sa
    >>> pattern = sa.BsrMatrix.from_dense(np.eye(4), block=2)
    >>> sa.sampled_matmul(np.ones((4, 3)), np.ones((3, 4)), pattern).to_dense()
    array([[3., 3., 0., 0.],
           [3., 3., 0., 0.],
           [0., 0., 3., 3.],
           [0., 0., 3., 3.]])
    """
    if _compiling():
        if allow_tf32 is not None:
            raise NotImplementedError(
                "allow_tf32 is not offered inside torch.compile, which does as torch is set to"
            )
        return _torch_sampled(X, Y, pattern, alpha, out, beta)
    if not isinstance(pattern, BsrMatrix):
        words = {"alpha": alpha, "beta": beta, "out": out, "allow_tf32": allow_tf32}
        if is_sparse_tensor(pattern):
            return _sampled_of_tensor(X, Y, pattern, words)
        return sampled_matmul(X, Y, as_bsr(pattern, "pattern", blocks_only=True), **words)
    a, torch = pattern, torch_module()
    refuse_nested(torch, X, "X")
    refuse_nested(torch, Y, "Y")
    _meet_torch(torch, X, out, Y)
    if torch is not None and _torch_sampled is not None and wants_torch(torch, None, X, out, Y, "Y"):
        return _torch_sampled(X, Y, a, alpha, out, beta, allow_tf32)
    if a.is_transposed:  # (X Y) at the blocks of S^T is ((Y^T X^T) at those of S)^T
        describe_sampled(X, Y, a.shape)
        flipped = None if out is None else check_is_bsr(out).T
        made = sampled_matmul(Y.T, X.T, a.T, alpha=alpha, beta=beta, out=flipped, allow_tf32=allow_tf32)
        return made.T if out is None else out
    return sampled(X, Y, a._pattern, alpha, beta, out, allow_tf32)


@uncompiled
def _sampled_of_tensor(X: Any, Y: Any, pattern: Any, words: dict) -> BsrMatrix:
    return sampled_matmul(X, Y, as_bsr(pattern, "pattern", blocks_only=True, outside=True), **words)


def _meet_torch(torch: Any, *arrays: Any) -> None:
    """torch may have been imported later than this package."""
    if torch is not None and _torch_matmul is None and any(isinstance(x, torch.Tensor) for x in arrays):
        from . import _torch  # noqa: F401


def wants_torch(torch: Any, a: BsrMatrix | None, b: Any, out: Any, other: Any, other_name: str = "") -> bool:
    """Whether a call needs torch's machinery: gradients, autocast, tracing, or tensors that have no
    memory."""
    tensor = torch.Tensor
    if _forward_ad._current_level >= 0:
        _refuse_tangents(None if a is None else a._values, b, other)
    if torch.is_grad_enabled() and isinstance(out, (tensor, BsrMatrix)) and out.requires_grad:
        raise RuntimeError("out requires grad: gradients do not flow through out")
    if not isinstance(b, tensor):
        for x, name in ((a, "A"), (other, other_name)):
            if isinstance(x, (tensor, BsrMatrix)) and x.requires_grad and torch.is_grad_enabled():
                raise RuntimeError(
                    f"{name} requires grad, and {'X' if a is None else 'B'} is a {type(b).__name__}, whose "
                    f"result could not: use a torch tensor, or {name}.detach()"
                )
        return False
    if type(b) is not tensor and type(b) is not torch.nn.Parameter:
        return True
    grad = torch.is_grad_enabled() and (
        b.requires_grad
        or (a is not None and a.requires_grad)
        or (isinstance(other, tensor) and other.requires_grad)
    )
    if grad and out is not None:
        raise RuntimeError("out is given, and A, B or bias requires grad: gradients do not flow through out")
    return grad or _surrounded()


def _numpy_product(a: BsrMatrix, b: Any, left: bool, options: Options) -> Any:
    """matmul's plain NumPy case: by a runner, or by the full path, which gives the runner its plan."""
    bias = options.bias
    quick = _quick.runner(
        a._plans, (a._transposed, left, options.activation, options.alpha, bias is not None), options.alpha
    )
    operands, indices = (a._values, b, *(() if bias is None else (bias,))), a._pattern.indices
    inputs = (*operands, *indices)
    result = quick.run(*inputs)
    if result is None:
        keep = _quick.serves(*operands, indices=indices)
        result, made = product_with_plan(a, b, left, None, options, keep)
        _quick.install(quick, inputs, (result,), made)
        a._follow()
    return result


def _product_into(a: BsrMatrix, b: Any, left: bool, out: Any, options: Options) -> Any:
    """A plain product into memory that is given, which gives the runner its plan."""
    _, made = product_with_plan(a, b, left, out, options, True)
    _quick.install(
        _quick.runner(a._plans, (a._transposed, left, 0, 1.0, False)),
        (a._values, b, *a._pattern.indices, out),
        (),
        made,
    )
    a._follow()
    return out


def sampled(
    x_array: Any,
    y_array: Any,
    pattern: Pattern,
    alpha: float,
    beta: float,
    out: Any,
    allow_tf32: bool | None,
) -> BsrMatrix:
    alpha, beta = number(alpha, "alpha"), number(beta, "beta")
    if out is None and beta == 0:
        pattern = pattern.like(x_array)
        return BsrMatrix._make(pattern, sampled_values(x_array, y_array, pattern, alpha, allow_tf32))
    sampled_with_plan(x_array, y_array, pattern, alpha, beta, out, allow_tf32, False)
    out.refresh()
    return out


def _at(self: BsrMatrix, other: Any) -> Any:
    result = None if _compiling() or _forward_ad._current_level >= 0 else self._runner(self._values, other)
    if result is not None:
        return result
    _abi.raise_interrupt()
    return matmul(self, other)


def _at_from_the_left(self: BsrMatrix, other: Any) -> Any:
    result = (
        None if _compiling() or _forward_ad._current_level >= 0 else self._left_runner(self._values, other)
    )
    if result is not None:
        return result
    _abi.raise_interrupt()
    return matmul(other, self)


BsrMatrix.__matmul__ = _at  # type: ignore[method-assign]
BsrMatrix.__rmatmul__ = _at_from_the_left  # type: ignore[method-assign]

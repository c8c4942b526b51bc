"""y_t = decay_t y_{t-1} + x_t, channel by channel: the recurrence with one source, in time linear in n.

On a CPU a Numba kernel; elsewhere, and while tracing, plain torch in log2(n) doubling steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import pad

from resolvent.kernels import Kernel
from resolvent.ops.autograd import signed
from resolvent.ops.cpu.memory import empty_like
from resolvent.ops.cpu.threads import in_threads
from resolvent.ops.precision import compute_dtype

if TYPE_CHECKING:
    from resolvent.ops.autograd import Context

_forward, _backward = Kernel("scan.forward"), Kernel("scan.backward")
_WORTH_THREADS = 1 << 15  # elements below which waking a thread costs more than it saves


def scan(decay: Tensor, x: Tensor, initial: Tensor | None = None) -> Tensor:
    """Run y_t = decay_t y_{t-1} + x_t over decay and x of (B, N, C); `initial` (B, C) stands before the first, or zero.

    A decay of exactly zero begins a new sequence: nothing before it is seen, not even an overflow. float32 and float64
    as they are; half precision is computed in float32 and returned as x's type.
    """
    if x.dim() != 3 or decay.shape != x.shape or x.shape[1] < 1:
        raise ValueError(
            f"expected decay and x of one shape, (B, N, C) with N ≥ 1, got {tuple(decay.shape)} and {tuple(x.shape)}."
        )
    if initial is not None and initial.shape != (x.shape[0], x.shape[2]):
        expected = (x.shape[0], x.shape[2])
        raise ValueError(f"expected initial of shape {expected}, (B, C), got {tuple(initial.shape)}.")
    dtype = compute_dtype(x)
    first = None if initial is None else initial.to(dtype)
    run = _doubling if x.shape[1] == 1 and not torch.is_grad_enabled() else _scan  # in decoding every call counts
    return run(decay.to(dtype), x.to(dtype), first, False).to(x.dtype)


# With (B y)_t = decay_t y_{t-1}, y = (I - B)^-1 (x + e_0 decay_0 initial), and the adjoint reads from the end:
#     dU = (I - B)^-T dY, that is  dU_t = dY_t + decay_{t+1} dU_{t+1}
#     dx = dU,   ddecay_t = dU_t y_{t-1},   dinitial = decay_0 dU_0      (y_{-1} = initial)
# The transposed scan z = (I - B)^-T x, which has no initial value, has dU = (I - B)^-1 dZ, ddecay_t = dU_{t-1} z_t:
# each is the other's gradient, so derivatives of every order exist.
class _Scan(torch.autograd.Function):
    @staticmethod
    @signed
    def forward(decay: Tensor, x: Tensor, initial: Tensor | None, transposed: bool) -> Tensor:
        if not _compiles(x):
            return _doubling(decay, x, initial, transposed)
        return _run_back(decay, None, None, x)[0] if transposed else _run(decay, x, initial)

    @staticmethod
    def setup_context(ctx: Context, inputs: tuple[Tensor, Tensor, Tensor | None, bool], output: Tensor) -> None:
        decay, _, initial, ctx.transposed = inputs
        ctx.save_for_backward(decay, initial, output)

    @staticmethod
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor | None, ...]:
        decay, initial, y = ctx.saved_tensors
        if ctx.transposed:
            du = _scan(decay, grad, None, False)
            return _before(du, None) * y if ctx.needs_input_grad[0] else None, du, None, None
        ddecay = None
        if not ctx.needs_input_grad[0]:
            du = _scan(decay, grad, None, True)
        elif _compiles(grad) and not torch.is_grad_enabled():
            du, ddecay = _run_back(decay, y, initial, grad)
        else:
            du = _scan(decay, grad, None, True)
            ddecay = du * _before(y, initial)
        return ddecay, du, decay[:, 0] * du[:, 0] if ctx.needs_input_grad[2] else None, None


def _scan(decay: Tensor, x: Tensor, initial: Tensor | None, transposed: bool) -> Tensor:
    result: Tensor = _Scan.apply(decay, x, initial, transposed)  # type: ignore[no-untyped-call]
    return result


def _before(y: Tensor, initial: Tensor | None) -> Tensor:
    """y_{t-1}."""
    return pad(y[:, :-1], (0, 0, 1, 0)) if initial is None else torch.cat([initial[:, None], y[:, :-1]], dim=1)


def _compiles(x: Tensor) -> bool:
    """Whether the Numba kernels take it. (One token, as in decoding, is quicker in torch.)"""
    return not torch.compiler.is_compiling() and x.device.type == "cpu" and x.shape[1] > 1


def _doubling(decay: Tensor, x: Tensor, initial: Tensor | None, transposed: bool) -> Tensor:
    """Hillis and Steele: after the step of width w, y_t holds what 2w terms give, and a_t the decay over them."""
    if transposed:
        return _doubling(pad(decay[:, 1:], (0, 0, 0, 1)).flip(1), x.flip(1), None, False).flip(1)
    y, a, width, n = x, decay, 1, x.shape[1]
    if n == 1:  # never x itself: autograd would take it for the input
        return x.clone() if initial is None else x + _times(decay, initial[:, None])
    if initial is not None:
        y = torch.cat([x[:, :1] + _times(decay[:, :1], initial[:, None]), x[:, 1:]], dim=1)
    while width < n:
        y = torch.cat([y[:, :width], y[:, width:] + _times(a[:, width:], y[:, :-width])], dim=1)
        if 2 * width < n:
            a = torch.cat([a[:, :width], _times(a[:, width:], a[:, :-width])], dim=1)
        width *= 2
    return y


def _times(a: Tensor, y: Tensor) -> Tensor:
    """Their product, but zero times anything is zero: a cut lets no infinity through."""
    return torch.where(a == 0, 0, a * y)


def _run(decay: Tensor, x: Tensor, initial: Tensor | None) -> Tensor:
    y = empty_like(x)
    _over_sequences(_forward, [decay, x, initial, y], x)
    return y


def _run_back(decay: Tensor, y: Tensor | None, initial: Tensor | None, dy: Tensor) -> tuple[Tensor, Tensor | None]:
    """The transposed scan of dy, and the gradient of the decays where y is given."""
    du, ddecay = empty_like(dy), None if y is None else empty_like(dy)
    _over_sequences(_backward, [decay, y, initial, dy, du, ddecay], dy)
    return du, ddecay


def _over_sequences(kernel: Kernel, tensors: list[Tensor | None], x: Tensor) -> None:
    """In threads. To divide channels too was measured to be slower: rows read by halves are not prefetched."""
    batch, n, c = x.shape
    arrays = [
        (x.new_empty(0) if t is None else t.detach().reshape(-1).contiguous()).resolve_neg().numpy() for t in tensors
    ]
    if x.numel() < _WORTH_THREADS:
        kernel(*arrays, n, c, 0, batch)
    else:
        in_threads(kernel.bind(*arrays, n, c), batch, (0, n))

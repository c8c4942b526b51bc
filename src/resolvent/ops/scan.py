"""First-order recurrences in time linear in n: per channel (`scan`), and with a matrix as state (`expanded_scan`).

`scan` is y_t = decay_t y_{t-1} + x_t, channel by channel, the recurrence with one source. On a CPU a Numba kernel;
elsewhere, and while tracing, plain torch in log2(n) doubling steps.

The state of `expanded_scan` is a matrix: S_t = exp(log_decay_t) S_{t-1} + write_t x_t^T, y_t = read_t^T S_t.

In chunks of matrix products (the state-space duality of Mamba-2): within a chunk each token reads the earlier ones,
(read write^T ∘ decays) x, and all that lies before the chunk through one matrix, which `scan` carries from chunk to
chunk. Plain torch, so derivatives of every order exist; nothing is as large as n × n or as n states.
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
from resolvent.ops.precision import compute_dtype, without_autocast

if TYPE_CHECKING:
    from resolvent.ops.autograd import Context

CHUNK = 64  # tokens that `expanded_scan` takes at once
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


def expanded_scan(
    x: Tensor, write: Tensor, read: Tensor, log_decay: Tensor, state: Tensor | None = None, begins: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Outputs (B, H, N, D) in x's type, and the last state (B, H, K, D) in float32, or float64 if x is.

    x is (B, H, N, D), write and read (B, H or 1, N, K), log_decay (B, H, N), finite and not positive; `state` stands
    before the first token. Where `begins`, (N,) or (B, N), a new sequence begins, and nothing before it is seen.
    """
    _check(x, write, read, log_decay, state, begins)
    dtype = compute_dtype(x)
    v, w, r, decays = (t.to(dtype) for t in (x, write, read, log_decay))
    before = None if state is None else state.to(dtype)
    if begins is not None:
        begins = begins.expand(x.shape[0], x.shape[2])[:, None]  # one for all heads
        decays = decays.masked_fill(begins, 0)  # never seen, and free to be anything
    with without_autocast(x.device.type):
        y, last = (_one if x.shape[2] == 1 else _chunks)(v, w, r, decays, before, begins)
    return y.to(x.dtype), last


def _one(
    x: Tensor, write: Tensor, read: Tensor, decays: Tensor, state: Tensor | None, begins: Tensor | None
) -> tuple[Tensor, Tensor]:
    """A single token, as in decoding."""
    new = write.mT * x
    if state is not None:
        kept = decays.exp()[..., None] * state
        new = new + (kept if begins is None else kept.masked_fill(begins[..., None], 0))
    return read @ new, new


def _chunks(
    x: Tensor, write: Tensor, read: Tensor, decays: Tensor, state: Tensor | None, begins: Tensor | None
) -> tuple[Tensor, Tensor]:
    n, size = x.shape[2], min(CHUNK, x.shape[2])
    rest = -n % size  # tokens that write nothing and let everything through
    if rest:
        x, write, read = (pad(t, (0, 0, 0, rest)) for t in (x, write, read))
        decays, begins = pad(decays, (0, rest)), None if begins is None else pad(begins, (0, rest))
    x, write, read, decays = (_divided(t, size) for t in (x, write, read, decays))
    # The decay from j to i is exp(sums_i - sums_j). In float32 one strong decay would spoil all differences behind it:
    # with decays of exp(-50) among weak ones, measured, outputs were wrong by 2e-5, and in float64 by 2e-7.
    sums = (decays if x.device.type == "mps" else decays.double()).cumsum(-1)

    reads = torch.ones(size, size, dtype=torch.bool, device=x.device).tril()  # token i of a chunk its token j
    enters = leaves = through = None  # what lies before the chunk, the state after it, and both
    if begins is not None:
        number = _divided(begins, size).cumsum(-1)
        reads = reads & (number[..., :, None] == number[..., None, :])
        enters, leaves, through = number == 0, number == number[..., -1:], number[..., -1] == 0

    def weight(log: Tensor, kept: Tensor | None) -> Tensor:
        return _exp(log.to(x.dtype), kept)

    y = ((read @ write.mT) * weight(sums[..., :, None] - sums[..., None, :], reads)) @ x
    given = write.mT @ (x * weight(sums[..., -1:] - sums, leaves)[..., None])
    states = _carried(given, weight(sums[..., -1], through), state)
    if state is not None or states.shape[2] > 1:
        first = torch.zeros_like(states[:, :, :1]) if state is None else state[:, :, None]
        before = torch.cat([first, states[:, :, :-1]], dim=2)
        y = y + (read @ before) * weight(sums, enters)[..., None]
    return y.flatten(2, 3)[:, :, :n], states[:, :, -1]


def _divided(t: Tensor, size: int) -> Tensor:
    return t.reshape(*t.shape[:2], t.shape[2] // size, size, *t.shape[3:])


def _carried(given: Tensor, decays: Tensor, state: Tensor | None) -> Tensor:
    """The state after every chunk: (B, H, chunks, K, D)."""
    flat = given.flatten(3).flatten(0, 1)
    through = decays.flatten(0, 1)[..., None].expand_as(flat)
    return scan(through, flat, None if state is None else state.flatten(2).flatten(0, 1)).view(given.shape)


def _exp(t: Tensor, kept: Tensor | None) -> Tensor:
    """Zero where it is not kept, and no gradient from there: what could overflow is replaced before."""
    return (t if kept is None else torch.where(kept, t, -torch.inf)).exp()


def _check(
    x: Tensor, write: Tensor, read: Tensor, log_decay: Tensor, state: Tensor | None, begins: Tensor | None
) -> None:
    if x.dim() != 4 or x.shape[2] < 1:
        raise ValueError(f"expected x of shape (B, H, N, D) with N ≥ 1, got {tuple(x.shape)}.")
    (batch, heads, n, d), k = x.shape, write.shape[-1]
    for name, t in (("write", write), ("read", read)):
        if t.shape not in ((batch, heads, n, k), (batch, 1, n, k)):
            shape = (batch, heads, n, k)
            raise ValueError(f"expected {name} of shape {shape}, (B, H or 1, N, K), got {tuple(t.shape)}.")
    if log_decay.shape != (batch, heads, n):
        raise ValueError(f"expected log_decay of shape {(batch, heads, n)}, (B, H, N), got {tuple(log_decay.shape)}.")
    if state is not None and state.shape != (batch, heads, k, d):
        raise ValueError(f"expected state of shape {(batch, heads, k, d)}, (B, H, K, D), got {tuple(state.shape)}.")
    if begins is not None and (begins.dtype != torch.bool or begins.shape not in ((n,), (batch, n))):
        raise ValueError(
            f"expected begins as booleans of shape (N,) or (B, N) = {(batch, n)}, "
            f"got {begins.dtype} of {tuple(begins.shape)}."
        )

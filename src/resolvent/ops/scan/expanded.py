"""A linear recurrence whose state is a matrix: S_t = exp(log_decay_t) S_{t-1} + write_t x_t^T, y_t = read_t^T S_t.

In chunks of matrix products (the state-space duality of Mamba-2): within a chunk each token reads the earlier ones,
(read write^T ∘ decays) x, and all that lies before the chunk through one matrix, which `scan` carries from chunk to
chunk. Plain torch, so derivatives of every order exist; nothing is as large as n × n or as n states.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from resolvent.ops.precision import compute_dtype, without_autocast
from resolvent.ops.scan.first_order import scan

CHUNK = 64


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

"""The fused operator on a GPU: autograd around two launches forward and at most six back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from resolvent.ops.autograd import VmapInfo, map_in_front
from resolvent.ops.differentiable import mix_gradients
from resolvent.ops.inputs import Inputs
from resolvent.ops.precision import compute_dtype
from resolvent.ops.rows import Rows
from resolvent.ops.triton.launch import Launch, launch_of
from resolvent.ops.triton.launcher import launch
from resolvent.ops.triton.plan import TILE
from resolvent.ops.triton.sizes import padded
from resolvent.ops.triton.sweeps import collect, feedback_scratch, slope_scratch, sweep, sweep_back, widened
from resolvent.patterns import Stage

if TYPE_CHECKING:
    from resolvent.ops.autograd import Context

STATS = 4  # of each row: the largest score and the inverse of the sum, of A and of B


def mix(inputs: Inputs, rows: Rows, scale: float, y_known: Tensor | None = None) -> Tensor:
    """See `Backend.mix`."""
    x = inputs.x
    known = x.new_zeros((*x.shape[:2], rows.known, x.shape[-1])) if y_known is None else y_known.to(x.dtype)
    y: Tensor = _FusedMix.apply(*inputs, known, rows, scale)[0]  # type: ignore[no-untyped-call]
    return y[:, :, rows.known :]


class _FusedMix(torch.autograd.Function):
    """Saves inputs, outputs and four numbers per row; the way back computes the weights again."""

    @staticmethod
    def forward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
        *inputs, y_known, rows, scale = arguments
        return forward(inputs, rows, scale, y_known)

    @staticmethod
    def setup_context(ctx: Context, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        *tensors, ctx.rows, ctx.scale = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*tensors, *output)

    @staticmethod
    def backward(ctx: Context, grad_y: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, y_known, y, exact, stats = ctx.saved_tensors
        if torch.is_grad_enabled():  # someone wants to differentiate the gradient
            gradients = mix_gradients(grad_y, inputs, y_known, ctx.rows, ctx.scale)
        else:
            gradients = backward(grad_y, (y, exact, stats), inputs, ctx.rows, ctx.scale)
        return *gradients, None, None

    @staticmethod
    def vmap(
        info: VmapInfo, in_dims: tuple[int | None, ...], *arguments: Tensor
    ) -> tuple[tuple[Tensor, ...], tuple[int, int, int]]:
        """One more dimension of independent sequences: it joins the batch."""
        *tensors, rows, scale = arguments
        moved = map_in_front(info, in_dims[: len(tensors)], tensors)
        outputs = _FusedMix.apply(*(t.flatten(0, 1) for t in moved), rows, scale)  # type: ignore[no-untyped-call]
        return tuple(t.unflatten(0, moved[0].shape[:2]) for t in outputs), (0, 0, 0)


def forward(
    inputs: Sequence[Tensor], rows: Rows, scale: float, y_known: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs of all rows, those known first; the same unrounded, where that differs; and numbers of each softmax."""
    x, qa, ka, qb, kb, gate = (t.detach().contiguous() for t in inputs)
    y = torch.empty_like(x)
    exact, stats = saved_like(inputs, rows.pattern)
    if rows.known and y_known is not None:
        y[:, :, : rows.known] = y_known.detach()
        if exact.numel():
            exact[:, :, : rows.known] = y_known.detach()
    if not x.numel() or not rows.new:
        return y, exact, stats
    one = launch_of(x, qa.shape[-1], rows)
    named = {"x": x, "qa": qa, "ka": ka, "qb": qb, "kb": kb, "gate": gate, "stats": stats, "y": y}
    heads = {name: t.flatten(0, 1) for name, t in named.items()}
    heads["y_exact"] = exact.flatten(0, 1) if one.rounded else heads["y"]
    for group in one.groups(gate.shape[0] * gate.shape[1], backward=False):
        own = {name: t[group] for name, t in heads.items()}
        scratch = feedback_scratch(one, own["x"])
        _coefficients(one, own, scratch, scale, output=True)
        if one.recurrent:
            sweep(one, own, scratch)
    return y, exact, stats


def saved_like(inputs: Sequence[Tensor], pattern: Stage) -> tuple[Tensor, Tensor]:
    """Outputs as they are fed back, where they are stored with fewer bits, and a few numbers of each row's softmax."""
    x, gate, dtype = inputs[0], inputs[5], compute_dtype(inputs[0])
    rounded = pattern.recurrent and x.dtype != dtype
    exact = x.new_empty((*x.shape[:2], x.shape[2] if rounded else 0, x.shape[3]), dtype=dtype)
    return exact, gate.new_empty((*gate.shape, STATS), dtype=dtype)


def backward(
    grad_y: Tensor, saved: Sequence[Tensor], inputs: Sequence[Tensor], rows: Rows, scale: float
) -> tuple[Tensor, ...]:
    """Gradients of the inputs and of the known outputs, from those of all outputs; `saved` is what `forward` gave."""
    x, qa, ka, qb, kb, gate = (t.detach().contiguous() for t in inputs)
    y, exact, stats = saved
    gradients = [torch.empty_like(t) for t in (x, qa, ka, qb, kb)]
    written = torch.empty_like if rows.pattern.recurrent and rows.new else torch.zeros_like
    dgate = written(gate, dtype=stats.dtype)
    dy_known = x.new_zeros((*x.shape[:2], rows.known, x.shape[-1]), dtype=stats.dtype)
    if not x.numel() or not rows.new:
        return *(t.zero_() for t in gradients), dgate.to(gate.dtype), dy_known.to(x.dtype)
    one = launch_of(x, qa.shape[-1], rows)
    names = ("x", "qa", "ka", "qb", "kb")
    used = {"x": True, "qa": one.direct, "ka": one.direct, "qb": one.scored, "kb": one.scored}
    by_name = dict(zip(names, gradients, strict=True))
    for name, needed in used.items():
        if not needed or (name == "x" and not one.direct and rows.known):
            by_name[name].zero_()  # not written, or not all of it
    tensors = {"x": x, "qa": qa, "ka": ka, "qb": qb, "kb": kb, "gate": gate, "stats": stats}
    tensors["dy"] = grad_y[:, :, rows.known :].detach().contiguous()
    tensors["y_exact"] = exact if one.rounded else y
    tensors |= {"dgate": dgate, "dy_known": dy_known} | {f"d{name}": t for name, t in by_name.items()}
    heads = {name: t.flatten(0, 1) for name, t in tensors.items()}
    for group in one.groups(gate.shape[0] * gate.shape[1], backward=True):
        _backward_of({name: t[group] for name, t in heads.items()}, one, scale)
    return *gradients, dgate.to(gate.dtype), (dy_known + grad_y[:, :, : rows.known]).to(x.dtype)


def _backward_of(own: dict[str, Tensor], one: Launch, scale: float) -> None:
    """All launches for one group of heads."""
    plan, known, x = one.plan, one.rows.known, own["x"]
    scratch = feedback_scratch(one, x)
    du = own["dy"]
    if one.recurrent:
        _coefficients(one, own, scratch, scale, output=False)
        shape = (len(x), one.total, one.d)
        du = x.new_empty(shape, dtype=one.compute) if plan.strided else x.new_zeros(shape, dtype=one.compute)
        sweep_back(one, own["dy"], du, scratch)
        if known:
            own["dy_known"].copy_(du[:, :known])
    near = {name: widened(own[f"d{name}"], one) for name in ("ka", "kb", "x")}
    if not one.direct:
        near["x"] = own["dx"]
    two = one.for_slopes()
    extra = slope_scratch(two, x, scored=True)
    _slopes(two, own, near, extra, du, scale, "a")
    if one.recurrent:
        _slopes(two, own, near, extra, du, scale, "b")
    if one.direct or one.scored:
        collect(two, own, near, extra, du, scored=True)


def _coefficients(
    one: Launch, own: dict[str, Tensor], scratch: dict[str, Tensor], scale: float, *, output: bool
) -> None:
    p, chunks = one.plan, one.chunks
    arguments = (
        *(own[name] for name in ("x", "qa", "ka", "qb", "kb", "gate")), own.get("y", own["y_exact"]), own["y_exact"],
        own["stats"], scratch["weights"], scratch["inverses"],
        p.near, p.reach, p.lists, p.sources, p.readers, p.offsets, p.blocks,
        one.rows.new, one.rows.known, p.block_count, p.weight_rows, p.width, scale,
    )  # fmt: skip
    constants = one.constants("D", "DK", "BD", "BDK", "BLOCK", "LEVELS", "TILE", "SCORED")
    constants |= one.constants("COMPUTE", "PRECISION", "EXACT") | {"DIRECT": one.direct and output, "OUTPUT": output}
    fits = padded(max(one.d, one.key_dim)) == 64 and one.dtype != one.compute  # without a stack, as it is
    constants |= one.options if fits else one.roomy_options
    if chunks is None:
        grid = (p.block_count, len(own["x"]))
        launch("forward_pass.coefficients", grid, *arguments, **constants, **one.constants("STRIDED", "RECURRENT"))
        return
    count = chunks.chunks.shape[1]
    wide = padded(max(one.d, one.key_dim)) > 64 and one.dtype == one.compute  # fewer columns at once, or it spills
    columns = one.sizes.channels if one.scored and not wide else TILE  # of a single source one row is alive
    launch(
        "chunk_pass.transfers", (count, len(own["x"])), *arguments,
        scratch["transfer"], chunks.columns, chunks.chunks, count, chunks.live_width,
        **constants, BV=columns,
    )  # fmt: skip


def _slopes(
    one: Launch, own: dict[str, Tensor], near: dict[str, Tensor], extra: dict[str, Tensor], du: Tensor, scale: float,
    side: str,
) -> None:  # fmt: skip
    p, a = one.plan, side == "a"
    reads = one.direct or not a  # else A is the diagonal
    v, dv = (own["x"], near["x"]) if a else (own["y_exact"], near["x"])
    launch(
        "backward_pass.slopes", (p.block_count, len(du)),
        own[f"q{side}"], own[f"k{side}"], v, du, own["gate"], own["stats"], own[f"dq{side}"], near[f"k{side}"], dv,
        own["dgate"], extra[f"partial_k{side}"], extra["partial_x"], extra[f"far_{side}"], extra["far_weights"],
        p.near, p.lists, p.sources, p.readers, p.offsets, p.blocks,
        one.rows.new, one.rows.known, p.block_count, p.weight_rows, p.entries_per_head, p.width,
        int(one.recurrent), scale, **one.constants("D", "DK", "BD", "BDK", "BLOCK", "TILE"),
        **one.constants("COMPUTE", "PRECISION", "EXACT"), A=a, READS=reads, STRIDED=p.strided and reads,
        SCORED=one.direct if a else one.scored, **one.roomy_options,
    )  # fmt: skip

"""The fused operator on a GPU: autograd around two launches forward and at most six back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from resolvent.ops.autograd import BatchedFunction
from resolvent.ops.differentiable import mix_gradients
from resolvent.ops.inputs import Inputs
from resolvent.ops.precision import compute_dtype
from resolvent.ops.rows import Rows
from resolvent.ops.triton.launch import Launch, launch, launch_of
from resolvent.ops.triton.plan import TILE
from resolvent.ops.triton.sizes import padded
from resolvent.patterns import Stage

if TYPE_CHECKING:
    from resolvent.ops.autograd import Context

Named = dict[str, Tensor]

STATS = 4  # of each row: the largest score and the inverse of the sum, of A and of B


def mix(inputs: Inputs, rows: Rows, scale: float, y_known: Tensor | None = None) -> Tensor:
    """See `Backend.mix`."""
    x = inputs.x
    known = x.new_zeros((*x.shape[:2], rows.known, x.shape[-1])) if y_known is None else y_known.to(x.dtype)
    y: Tensor = _FusedMix.apply(*inputs, known, rows, scale)[0]  # type: ignore[no-untyped-call]
    return y[:, :, rows.known :]


class _FusedMix(BatchedFunction):
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
        scratch = _feedback_scratch(one, own["x"])
        _coefficients(one, own, scratch, scale, output=True)
        if one.recurrent:
            _sweep(one, own, scratch)
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


def _backward_of(own: Named, one: Launch, scale: float) -> None:
    plan, known, x = one.plan, one.rows.known, own["x"]
    scratch = _feedback_scratch(one, x)
    du = own["dy"]
    if one.recurrent:
        _coefficients(one, own, scratch, scale, output=False)
        shape = (len(x), one.total, one.d)
        du = x.new_empty(shape, dtype=one.compute) if plan.strided else x.new_zeros(shape, dtype=one.compute)
        _sweep_back(one, own["dy"], du, scratch)
        if known:
            own["dy_known"].copy_(du[:, :known])
    near = {name: _widened(own[f"d{name}"], one) for name in ("ka", "kb", "x")}
    if not one.direct:
        near["x"] = own["dx"]
    two = one.for_slopes()
    extra = _slope_scratch(two, x)
    _slopes(two, own, near, extra, du, scale, "a")
    if one.recurrent:
        _slopes(two, own, near, extra, du, scale, "b")
    if one.direct or one.scored:
        _collect(two, own, near, extra, du)


def _coefficients(one: Launch, own: Named, scratch: Named, scale: float, *, output: bool) -> None:
    p, chunks = one.plan, one.chunks
    arguments = (
        *(own[name] for name in ("x", "qa", "ka", "qb", "kb", "gate")), own.get("y", own["y_exact"]), own["y_exact"],
        own["stats"], scratch["weights"], scratch["inverses"],
        p.near, p.lists, p.sources, p.readers, p.offsets, p.blocks,
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
    one: Launch, own: Named, near: Named, extra: Named, du: Tensor, scale: float,
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


def _widened(t: Tensor, one: Launch) -> Tensor:
    """Where to put what comes before rounding: the tensor itself, if it has all bits."""
    return t if t.dtype == one.compute else torch.empty_like(t, dtype=one.compute)


def _feedback_scratch(one: Launch, x: Tensor) -> Named:
    inverses = one.plan.block_count * one.sizes.block**2 if one.recurrent else 0
    weights = one.plan.weight_rows * one.sizes.block if one.recurrent else 0
    transfer = 0 if one.chunks is None else one.rows.new * one.chunks.live_width
    sizes = {"inverses": inverses, "weights": weights, "transfer": transfer}
    return {name: x.new_empty(len(x) * size, dtype=one.compute) for name, size in sizes.items()}


def _slope_scratch(one: Launch, x: Tensor) -> Named:
    far, entries = (one.plan.weight_rows * one.sizes.block, 0) if one.plan.strided else (0, one.plan.entries_per_head)
    a, b = one.direct, one.scored
    sizes = {"far_a": far * a, "far_b": far * b, "far_weights": far * a}
    sizes |= {"partial_ka": entries * one.key_dim * a, "partial_kb": entries * one.key_dim * b}
    sizes |= {"partial_x": entries * one.d * a}
    return {name: x.new_empty(len(x) * size, dtype=one.compute) for name, size in sizes.items()}


def _sweep(one: Launch, own: Named, scratch: Named) -> None:
    """What rows before blocks, or before chunks, are fed back: through each sequence, in order."""
    p = one.plan
    if one.chunks is not None:
        _carry("chunk_pass.carry", one, own["y"], own["y_exact"], scratch, **one.constants("ROUNDED"))
        return
    launch(
        "forward_pass.sweep", (len(own["x"]), p.sequences.shape[1], one.channel_programs),
        own["y"], own["y_exact"], scratch["weights"], scratch["inverses"], p.lists, p.sources,
        p.offsets, p.blocks, p.sequences, one.rows.new, one.rows.known, p.block_count, p.sequences.shape[1],
        p.weight_rows, p.width, **one.constants("D", "BV", "BLOCK", "TILE", "STRIDED", "ROUNDED"),
        **one.constants("COMPUTE", "PRECISION"), **one.options,
    )  # fmt: skip


def _sweep_back(one: Launch, dy: Tensor, du: Tensor, scratch: Named) -> None:
    """From gradients of outputs to those of A x, from the end of each sequence; chunks all at once, once carried."""
    p, sequences = one.plan, one.plan.sequences
    if one.chunks is not None:
        _carry("chunk_pass.carry_back", one, dy, du, scratch)
        sequences = one.chunks.chunks
    launch(
        "backward_pass.sweep_back", (len(dy), sequences.shape[1], one.channel_programs),
        dy, du, scratch["weights"], scratch["inverses"], p.lists, p.sources, p.offsets, p.blocks,
        sequences, one.rows.new, one.rows.known, p.block_count, sequences.shape[1], p.weight_rows, p.width,
        **one.constants("D", "BV", "BLOCK", "TILE", "STRIDED", "CHUNKED", "COMPUTE", "PRECISION"), **one.options,
    )  # fmt: skip


def _carry(kernel: str, one: Launch, first: Tensor, second: Tensor, scratch: Named, **more: bool) -> None:
    p, chunks = one.plan, one.chunks
    assert chunks is not None
    launch(
        kernel, (len(first), p.sequences.shape[1], one.channel_programs),
        first, second, scratch["transfer"], p.lists, p.sources, p.blocks, chunks.chunks,
        chunks.sequences, one.rows.new, one.rows.known, p.block_count, chunks.chunks.shape[1], p.sequences.shape[1],
        chunks.live_width, **one.constants("D", "BV", "BLOCK", "CHUNK", "TILE", "COMPUTE", "PRECISION"), **more,
        **one.options,
    )  # fmt: skip


def _collect(one: Launch, own: Named, near: Named, extra: Named, du: Tensor) -> None:
    p = one.plan
    launch(
        "backward_pass.collect", (p.spans.shape[1], len(du)),
        own["dka"], own["dkb"], own["dx"], near["ka"], near["kb"], near["x"],
        extra["partial_ka"], extra["partial_kb"], extra["partial_x"],
        extra["far_a"], extra["far_b"], extra["far_weights"], own["qa"], own["qb"], du,
        p.offsets, p.spans, p.entry_begins, p.entries,
        one.rows.new, one.rows.known, p.spans.shape[1], p.weight_rows, p.entries_per_head, p.width,
        int(one.recurrent), **one.constants("D", "DK", "BD", "BDK", "BLOCK", "STRIDED", "DIRECT", "SCORED", "COMPUTE"),
        **one.roomy_options,
    )  # fmt: skip

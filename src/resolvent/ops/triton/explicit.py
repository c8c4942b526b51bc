"""`solve` on a GPU: explicit coefficients, signed ones among them, through the same sweeps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from resolvent.ops.autograd import VmapInfo, map_in_front
from resolvent.ops.differentiable import solve_gradients
from resolvent.ops.precision import compute_dtype
from resolvent.ops.rows import Rows
from resolvent.ops.triton.launch import Launch, launch_of
from resolvent.ops.triton.launcher import launch
from resolvent.ops.triton.sweeps import Named, collect, feedback_scratch, slope_scratch, sweep, sweep_back

if TYPE_CHECKING:
    from resolvent.ops.autograd import Context


def solve(x: Tensor, alpha: Tensor, beta: Tensor | None, rows: Rows, y_known: Tensor | None = None) -> Tensor:
    """See `Backend.solve`."""
    dtype = compute_dtype(x)
    known = x.new_zeros((*x.shape[:2], rows.known, x.shape[-1])) if y_known is None else y_known
    feedback = alpha.new_empty((*alpha.shape[:-1], 0)) if beta is None else beta
    tensors = (t.to(dtype) for t in (x, alpha, feedback, known))
    y: Tensor = _FusedSolve.apply(*tensors, rows)  # type: ignore[no-untyped-call]
    return y[:, :, rows.known :].to(x.dtype)


class _FusedSolve(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, alpha: Tensor, beta: Tensor, y_known: Tensor, rows: Rows) -> Tensor:
        return _forward(x, alpha, beta, y_known, rows)

    @staticmethod
    def setup_context(ctx: Context, inputs: tuple[Tensor, Tensor, Tensor, Tensor, Rows], output: Tensor) -> None:
        *tensors, ctx.rows = inputs
        ctx.save_for_backward(*tensors, output)

    @staticmethod
    def backward(ctx: Context, grad_y: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, y_known, y = ctx.saved_tensors
        if torch.is_grad_enabled():
            return *solve_gradients(grad_y, inputs, y_known, ctx.rows), None
        return *_backward(grad_y, inputs, y, ctx.rows), None

    @staticmethod
    def vmap(info: VmapInfo, in_dims: tuple[int | None, ...], *arguments: Tensor) -> tuple[Tensor, int]:
        """One more dimension of independent sequences: it joins the batch."""
        *tensors, rows = arguments
        moved = (t.flatten(0, 1) for t in map_in_front(info, in_dims[: len(tensors)], tensors))
        apply: Callable[..., Tensor] = _FusedSolve.apply
        return apply(*moved, rows).unflatten(0, (info.batch_size, -1)), 0


def _forward(x: Tensor, alpha: Tensor, beta: Tensor, y_known: Tensor, rows: Rows) -> Tensor:
    x, alpha, beta = (t.detach().contiguous() for t in (x, alpha, beta))
    y = torch.empty_like(x)
    if rows.known:
        y[:, :, : rows.known] = y_known.detach()
    if not x.numel() or not rows.new:
        return y
    one = launch_of(x, 1, rows, explicit=True)
    heads = {name: t.flatten(0, 1) for name, t in (("x", x), ("alpha", alpha), ("beta", beta), ("y", y))}
    heads["y_exact"] = heads["y"]
    for group in one.groups(len(heads["x"]), backward=False):
        own = {name: t[group] for name, t in heads.items()}
        scratch = feedback_scratch(one, own["x"])
        _place(one, own, scratch, output=True)
        if one.recurrent:
            sweep(one, own, scratch)
    return y


def _backward(grad_y: Tensor, inputs: Sequence[Tensor], y: Tensor, rows: Rows) -> tuple[Tensor, ...]:
    x, alpha, beta = (t.detach().contiguous() for t in inputs)
    dx, dalpha, dbeta = (torch.zeros_like(t) for t in (x, alpha, beta))  # not all coefficients are used
    dy_known = x.new_zeros((*x.shape[:2], rows.known, x.shape[-1]))
    if x.numel() and rows.new:
        one = launch_of(x, 1, rows, explicit=True)
        dy = grad_y[:, :, rows.known :].detach().contiguous()
        tensors = {"x": x, "alpha": alpha, "beta": beta, "y_exact": y, "dx": dx, "dalpha": dalpha, "dbeta": dbeta}
        heads = {name: t.flatten(0, 1) for name, t in (tensors | {"dy": dy, "dy_known": dy_known}).items()}
        for group in one.groups(len(heads["x"]), backward=True):
            _backward_of({name: t[group] for name, t in heads.items()}, one)
    return dx, dalpha, dbeta, dy_known + grad_y[:, :, : rows.known]


def _backward_of(own: Named, one: Launch) -> None:
    """All launches for one group of heads."""
    plan, known, x = one.plan, one.rows.known, own["x"]
    two = one.for_slopes()
    scratch, extra, du = feedback_scratch(one, x), slope_scratch(two, x, scored=False), own["dy"]
    if one.recurrent:
        _place(one, own, scratch, output=False)
        shape = (len(x), one.total, one.d)
        du = x.new_empty(shape) if plan.strided else x.new_zeros(shape)
        sweep_back(one, own["dy"], du, scratch)
        if known:
            own["dy_known"].copy_(du[:, :known])
    _slopes(two, own, extra, du, "alpha")
    if one.recurrent:
        _slopes(two, own, extra, du, "beta")
    if one.direct:
        nothing = own["dx"]
        keys = {"dka": nothing, "dkb": nothing, "qa": nothing, "qb": nothing}
        collect(two, own | keys, {"ka": nothing, "kb": nothing, "x": own["dx"]}, extra, du, scored=False)


def _place(one: Launch, own: Named, scratch: Named, *, output: bool) -> None:
    p = one.plan
    launch(
        "explicit_pass.place", (p.block_count, len(own["x"])),
        own["x"], own["alpha"], own["beta"], own["y_exact"], own["y_exact"], scratch["weights"], scratch["inverses"],
        p.near, p.reach, p.lists, p.sources, p.readers, p.offsets, p.blocks,
        one.rows.new, one.rows.known, p.block_count, p.weight_rows, p.width,
        own["alpha"].shape[-1], own["beta"].shape[-1],
        **one.constants("D", "BD", "BLOCK", "TILE", "STRIDED", "RECURRENT", "COMPUTE", "PRECISION"),
        DIRECT=one.direct and output, OUTPUT=output, **one.options,
    )  # fmt: skip


def _slopes(one: Launch, own: Named, extra: Named, du: Tensor, which: str) -> None:
    p, a = one.plan, which == "alpha"
    reads = one.direct or not a  # else A is the diagonal
    launch(
        "explicit_pass.slopes_explicit", (p.block_count, len(du)),
        own["x"] if a else own["y_exact"], du, own[which], own[f"d{which}"], own["dx"], extra["partial_x"],
        extra["far_weights"], p.near, p.lists, p.sources, p.readers, p.offsets, p.blocks,
        one.rows.new, one.rows.known, p.block_count, p.weight_rows, p.entries_per_head, p.width, own[which].shape[-1],
        int(one.recurrent), **one.constants("D", "BD", "BLOCK", "TILE", "COMPUTE", "PRECISION"),
        A=a, READS=reads, STRIDED=p.strided and reads, **one.roomy_options,
    )  # fmt: skip

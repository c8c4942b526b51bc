"""Launches that gated and explicit coefficients share: the sweeps, what collects gradients, and their scratch."""

from __future__ import annotations

import torch
from torch import Tensor

from resolvent.ops.triton.launch import Launch
from resolvent.ops.triton.launcher import launch

Named = dict[str, Tensor]


def widened(t: Tensor, one: Launch) -> Tensor:
    """Where to put what comes before rounding: the tensor itself, if it has all bits."""
    return t if t.dtype == one.compute else torch.empty_like(t, dtype=one.compute)


def feedback_scratch(one: Launch, x: Tensor) -> Named:
    inverses = one.plan.block_count * one.sizes.block**2 if one.recurrent else 0
    weights = one.plan.weight_rows * one.sizes.block if one.recurrent else 0
    transfer = 0 if one.chunks is None else one.rows.new * one.chunks.live_width
    sizes = {"inverses": inverses, "weights": weights, "transfer": transfer}
    return {name: x.new_empty(len(x) * size, dtype=one.compute) for name, size in sizes.items()}


def slope_scratch(one: Launch, x: Tensor, *, scored: bool) -> Named:
    far, entries = (one.plan.weight_rows * one.sizes.block, 0) if one.plan.strided else (0, one.plan.entries_per_head)
    a, keys_a, keys_b = one.direct, one.direct and scored, one.scored and scored
    sizes = {
        "far_a": far * keys_a, "far_b": far * keys_b, "far_weights": far * a,
        "partial_ka": entries * one.key_dim * keys_a, "partial_kb": entries * one.key_dim * keys_b,
        "partial_x": entries * one.d * a,
    }  # fmt: skip
    return {name: x.new_empty(len(x) * size, dtype=one.compute) for name, size in sizes.items()}


def sweep(one: Launch, own: Named, scratch: Named) -> None:
    """What rows before blocks, or before chunks, are fed back: through each sequence, in order."""
    p = one.plan
    if one.chunks is not None:
        _carry("chunk_pass.carry", one, own["y"], own["y_exact"], scratch, **one.constants("ROUNDED"))
        return
    launch(
        "forward_pass.sweep", (len(own["x"]), p.sequences.shape[1], one.channel_programs),
        own["y"], own["y_exact"], scratch["weights"], scratch["inverses"], p.reach, p.lists, p.sources, p.readers,
        p.offsets, p.blocks, p.sequences, one.rows.new, one.rows.known, p.block_count, p.sequences.shape[1],
        p.weight_rows, p.width, **one.constants("D", "BV", "BLOCK", "TILE", "STRIDED", "ROUNDED"),
        **one.constants("COMPUTE", "PRECISION"), **one.options,
    )  # fmt: skip


def sweep_back(one: Launch, dy: Tensor, du: Tensor, scratch: Named) -> None:
    """From gradients of outputs to those of A x, from the end of each sequence; chunks all at once, once carried."""
    p, sequences = one.plan, one.plan.sequences
    if one.chunks is not None:
        _carry("chunk_pass.carry_back", one, dy, du, scratch)
        sequences = one.chunks.chunks
    launch(
        "backward_pass.sweep_back", (len(dy), sequences.shape[1], one.channel_programs),
        dy, du, scratch["weights"], scratch["inverses"], p.reach, p.lists, p.sources, p.readers, p.offsets, p.blocks,
        sequences, one.rows.new, one.rows.known, p.block_count, sequences.shape[1], p.weight_rows, p.width,
        **one.constants("D", "BV", "BLOCK", "TILE", "STRIDED", "CHUNKED", "COMPUTE", "PRECISION"), **one.options,
    )  # fmt: skip


def _carry(kernel: str, one: Launch, first: Tensor, second: Tensor, scratch: Named, **more: bool) -> None:
    p, chunks = one.plan, one.chunks
    assert chunks is not None
    launch(
        kernel, (len(first), p.sequences.shape[1], one.channel_programs),
        first, second, scratch["transfer"], chunks.alive, p.lists, p.sources, p.blocks, chunks.chunks,
        chunks.sequences, one.rows.new, one.rows.known, p.block_count, chunks.chunks.shape[1], p.sequences.shape[1],
        chunks.live_width, **one.constants("D", "BV", "BLOCK", "CHUNK", "TILE", "COMPUTE", "PRECISION"), **more,
        **one.options,
    )  # fmt: skip


def collect(one: Launch, own: Named, near: Named, extra: Named, du: Tensor, *, scored: bool) -> None:
    """Gradients of x and, where coefficients are computed from scores, of keys."""
    p = one.plan
    launch(
        "backward_pass.collect", (p.spans.shape[1], len(du)),
        own["dka"], own["dkb"], own["dx"], near["ka"], near["kb"], near["x"],
        extra["partial_ka"], extra["partial_kb"], extra["partial_x"],
        extra["far_a"], extra["far_b"], extra["far_weights"], own["qa"], own["qb"], du,
        p.offsets, p.spans, p.entry_begins, p.entries,
        one.rows.new, one.rows.known, p.spans.shape[1], p.weight_rows, p.entries_per_head, p.width,
        int(one.recurrent), **one.constants("D", "DK", "BD", "BDK", "BLOCK", "STRIDED", "DIRECT", "COMPUTE"),
        KEYS=scored and one.direct, SCORED=scored and one.scored, **one.roomy_options,
    )  # fmt: skip

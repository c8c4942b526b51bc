"""A record as a notebook shows it: what came out, what it took, and the curve of the loss. No torch here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from resolvent.notebook import beside, curve, table

if TYPE_CHECKING:
    from resolvent.train.record import Record


def record_table(record: Record) -> str:
    """A table in HTML, with the curve beside it if there is one."""
    losses = [(float(point.step), point.loss) for point in record.curve]
    return beside(table(record.config.title, _rows(record)), curve(losses, _described(losses), "step", "loss"))


def _rows(record: Record) -> list[tuple[str, str]]:
    config, environment = record.config, record.environment
    steps = f"{record.steps:,} of {config.train.steps:,}, {record.skipped_steps:,} skipped"
    solved = [] if record.solved_at is None else [("solved", f"at step {record.solved_at:,}")]
    commit = "" if environment.commit is None else f", commit {environment.commit}"
    return [
        ("result", str(record.evaluation)),
        *((f"context {each.context:,}", str(each)) for each in record.lengths),
        *solved,
        ("steps", steps),
        ("training", f"{record.tokens:,} tokens in {record.seconds:,.0f} s, {record.tokens_per_second:,.0f} tokens/s"),
        ("model", f"{record.parameters:,} parameters, {config.model.layers} layers, {config.model.rule_label}"),
        ("seed", str(record.seed)),
        ("environment", f"{environment.machine}, torch {environment.packages.get('torch', 'unknown')}{commit}"),
    ]


def _described(losses: list[tuple[float, float]]) -> str:
    if not losses:
        return "no evaluations"
    (first, start), (last, end) = losses[0], losses[-1]
    return f"loss {start:.3g} at step {first:,.0f}, {end:.3g} at step {last:,.0f}"

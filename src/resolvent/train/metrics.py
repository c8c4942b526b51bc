"""`metrics.jsonl`: a line of JSON for each step that is logged. No torch here."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import final, get_args

from resolvent.errors import SettingError
from resolvent.fields import Amount, Count, as_mapping, check_names, check_types, field_names
from resolvent.files import explain_full_disk, write_text
from resolvent.tasks import Measure
from resolvent.untrusted import parse, read_lines

FILE = "metrics.jsonl"


@final
@dataclass(frozen=True)
class StepMetrics:
    """A step, and what an evaluation after it gave: an accuracy or a perplexity."""

    step: Count
    loss: float
    learning_rate: float
    gradient_norm: float
    seconds: Amount
    tokens_per_second: float
    accuracy: float | None = None
    perplexity: float | None = None

    def __post_init__(self) -> None:
        check_types(self)

    @property
    def value(self) -> float | None:
        return self.perplexity if self.accuracy is None else self.accuracy

    def to_dict(self) -> dict[str, float]:
        return {name: value for name, value in dataclasses.asdict(self).items() if value is not None}

    @classmethod
    def from_dict(cls, content: object) -> StepMetrics:
        values = as_mapping(content, "a line of metrics")
        check_names(values, field_names(cls), "a line of metrics", optional=get_args(Measure))
        make: Callable[..., StepMetrics] = cls  # which checks its values
        return make(**values)


class MetricsLog:
    """Appends to a file, or to none."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)

    def write(self, metrics: StepMetrics) -> None:
        if self.path is not None:
            with explain_full_disk(self.path), self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(metrics.to_dict()) + "\n")

    def truncate_after(self, step: int) -> None:
        """Remove what was logged after the checkpoint that a run resumes from: it is about to be logged again."""
        if self.path is not None and self.path.exists():
            kept = [metrics for metrics in read_metrics(self.path) if metrics.step <= step]
            write_text(self.path, "".join(json.dumps(metrics.to_dict()) + "\n" for metrics in kept))


def read_metrics(path: Path) -> list[StepMetrics]:
    """All complete lines of a log, of which there may be none; a kill can leave half of the last one."""
    metrics: list[StepMetrics] = []
    for number, line in read_lines(path) if path.exists() else ():
        try:
            metrics.append(StepMetrics.from_dict(parse(line)))
        except ValueError as error:
            if not line.endswith(b"\n"):
                break
            raise SettingError(f"{path} is damaged in line {number}: {error} Move it away to log anew.") from None
    return metrics

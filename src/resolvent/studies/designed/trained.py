"""Runs by structure, with what theory says of the layer under study: of one pattern, or of one for each head."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

from resolvent.analysis.congestion import Congestion, congestion
from resolvent.analysis.hops import Hops, hops
from resolvent.analysis.stack import stack_congestion, stack_hops
from resolvent.patterns import as_pattern
from resolvent.studies.grade import by_seed
from resolvent.studies.table1.table import evaluation_of
from resolvent.train.config import RunConfig
from resolvent.train.evaluations import AccuracyEvaluation
from resolvent.train.record import Record

LayerSetting = str | tuple[str, ...]  # one pattern for all heads, or one for each


@dataclass(frozen=True)
class Trained:
    """The runs of one structure on one task, and what theory says of its last layer.

    tokens       copied, of which congestion is: half of the longest sequence
    channels     of a state: heads × their channels
    """

    heads: LayerSetting
    task: str
    tokens: int
    channels: int
    hops: Hops
    congestion: Congestion
    scores: tuple[float, ...]

    @property
    def label(self) -> str:
        return layer_label(self.heads)

    @property
    def slots(self) -> float:
        """Cache slots of a head over the tokens that are copied, the mean over heads."""
        names = [self.heads] if isinstance(self.heads, str) else self.heads
        return sum(as_pattern(name).slots(self.tokens) for name in names) / len(names)

    @property
    def load(self) -> float:
        """Tokens that share a state, for each of its channels: log2 of congestion / dimension."""
        return math.log2(self.congestion.lower / self.channels)

    @property
    def distance(self) -> float:
        """log2 of the mean number of hops."""
        return math.log2(max(self.hops.mean, 1.0))


def layer_label(heads: LayerSetting) -> str:
    """`order:8`, or `1 × binomial:15,lazy | 1 × first-order`."""
    if isinstance(heads, str) or len(set(heads)) == 1:
        return str(as_pattern(heads if isinstance(heads, str) else heads[0]))
    return " | ".join(f"{len(list(same))} × {as_pattern(name)}" for name, same in groupby(heads))


def trained(records: Sequence[Record], *, apart: bool = False) -> list[Trained]:
    """Runs by structure and task, in the order of the records; if `apart`, by settings and task, too."""

    def kind(record: Record) -> tuple[object, ...]:
        task, model = record.config.task, record.config.model
        key = (layer_label(_heads_of(record)), task.name, f"length {task.longest}", f"dimension {model.dim}")
        return (*key, (settings(record.config), task)) if apart else key

    return [_trained(group) for group in by_seed(filter(has_accuracy, records), kind).values()]


def has_accuracy(record: Record) -> bool:
    """Whether it is of a task with answers; of text and of other languages a loss is measured."""
    return isinstance(record.evaluation, AccuracyEvaluation)


def _trained(group: Sequence[Record]) -> Trained:
    config, heads = group[0].config, _heads_of(group[0])
    tokens = config.task.longest // 2
    distances, bounds = _theory(heads, tokens, config.model.heads)
    return Trained(heads, config.task.name, tokens, config.model.dim, distances, bounds,
                   tuple(evaluation_of(record).accuracy for record in group))  # fmt: skip


@lru_cache(maxsize=256)
def _theory(heads: LayerSetting, tokens: int, count: int) -> tuple[Hops, Congestion]:
    if isinstance(heads, str):
        return hops(heads, 2 * tokens), congestion(heads, tokens)
    layer = list(heads) if len(heads) == count else [heads[0]] * count
    return stack_hops([layer], 2 * tokens), stack_congestion([layer], tokens)


def _heads_of(record: Record) -> LayerSetting:
    """Of the last layer: where the first has a pattern of its own, it is not the one under study."""
    pattern = record.config.model.pattern
    last = pattern[-1] if isinstance(pattern, tuple) else pattern
    return last if isinstance(last, str) else tuple(map(str, last))  # type: ignore[arg-type]


def settings(config: RunConfig) -> tuple[object, ...]:
    """All but the pattern and the seed."""
    model = dataclasses.replace(config.model, pattern="dense", rule="softmax")
    return model, config.model.rule, dataclasses.replace(config.train, seed=0)

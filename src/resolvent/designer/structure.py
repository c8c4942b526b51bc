"""What is designed: a pattern for every head of every layer, as a value, and what it costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from resolvent.analysis.cost import cache_bytes
from resolvent.analysis.routers import held_size
from resolvent.patterns import Pattern, Stage

Setting = str | tuple[str, ...] | tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Shape:
    """The layers that are designed: how many, their heads, the channels of a head, and bytes per number."""

    layers: int = 1
    heads: int = 12
    head_dim: int = 64
    item_bytes: int = 4

    @property
    def states(self) -> int:
        """Heads of all layers."""
        return self.layers * self.heads


@dataclass(frozen=True)
class Structure:
    """For each layer its heads by pattern, as (number of heads, pattern)."""

    layers: tuple[tuple[tuple[int, Pattern], ...], ...]

    @classmethod
    def uniform(cls, pattern: Pattern, shape: Shape) -> Structure:
        """One pattern in all heads of all layers."""
        return cls((((shape.heads, pattern),),) * shape.layers)

    @property
    def patterns(self) -> tuple[Pattern, ...]:
        """Each once."""
        return tuple(dict.fromkeys(p for layer in self.layers for _, p in layer))

    @property
    def is_uniform(self) -> bool:
        return len(self.patterns) == 1

    def heads_of(self, layer: int) -> list[Pattern]:
        """One pattern for each head of a layer."""
        return [p for count, p in self.layers[layer] for _ in range(count)]

    def counts(self) -> dict[Pattern, int]:
        """In how many heads, of all layers, each pattern is."""
        totals: dict[Pattern, int] = {}
        for layer in self.layers:
            for count, p in layer:
                totals[p] = totals.get(p, 0) + count
        return totals

    @property
    def setting(self) -> Setting:
        """What `Mixer` and `ModelConfig` take as `pattern`: one for all, one for each head, or a list of these."""
        if self.is_uniform:
            return self.patterns[0].spelling
        layers = tuple(tuple(p.spelling for p in self.heads_of(index)) for index in range(len(self.layers)))
        return layers[0] if len(layers) == 1 else layers

    @property
    def label(self) -> str:
        if self.is_uniform:
            return str(self.patterns[0])
        lines = [" | ".join(f"{count} × {p}" for count, p in layer) for layer in self.layers]
        kinds = list(dict.fromkeys(lines))
        if len(kinds) == 1:
            return kinds[0]
        layer_names = [_layer_name(layer) for layer in self.layers]
        runs: list[list[str]] = []
        for name in layer_names:
            if runs and runs[-1][0] == name:
                runs[-1].append(name)
            else:
                runs.append([name])
        return ", then ".join(f"{len(run)} layer{'s' * (len(run) > 1)} of {run[0]}" for run in runs)

    def slots(self, n: int, shape: Shape) -> float:
        """Cache slots of a head, the mean over all heads."""
        return _mean(self, [p.slots(n) for p in self.patterns], shape)

    def reads(self, n: int, shape: Shape) -> float:
        """The most positions that a token reads in a head, the mean over all heads."""
        return _mean(self, [widest_row(p, n) for p in self.patterns], shape)

    def kib(self, n: int, shape: Shape) -> float:
        """The decode cache of all layers."""
        sizes = [cache_bytes(p, n, 1, shape.head_dim, shape.item_bytes) for p in self.patterns]
        return _mean(self, sizes, shape) * shape.states / 1024

    def madds(self, n: int, shape: Shape) -> float:
        """Multiply-adds per token of mixing, forward, in all layers."""
        entries = [_entries(p, n) for p in self.patterns]
        return _mean(self, entries, shape) * shape.states * 2 * shape.head_dim / n


def _layer_name(layer: tuple[tuple[int, Pattern], ...]) -> str:
    return str(layer[0][1]) if len(layer) == 1 else "(" + " | ".join(f"{count} × {p}" for count, p in layer) + ")"


def _mean(structure: Structure, values: Sequence[float], shape: Shape) -> float:
    """Over heads, of a value for each pattern; exact while sums are integers."""
    counts = structure.counts()
    total = sum(counts[p] * value for p, value in zip(structure.patterns, values, strict=True))
    return total / shape.states


@lru_cache(maxsize=4096)
def widest_row(p: Pattern, n: int) -> int:
    """`Pattern.widest_row`, in no time where it is known."""
    if isinstance(p, Stage) and (size := held_size(p)) is not None:
        return min(size, n - 1)
    return p.widest_row(n)


def _entries(p: Pattern, n: int) -> int:
    if isinstance(p, Stage) and (size := held_size(p)) is not None:
        held = min(size, n - 1)
        reads = held * n - held * (held + 1) // 2
        return n + reads * ((p.direct == "all") + p.recurrent)
    return sum(p.nonzeros(n))

"""Runs on text by structure and rule: what each costs at its context, and how well it predicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

from resolvent.analysis import cost, growth
from resolvent.patterns import CacheEfficient, Pattern, pattern
from resolvent.report.table1 import Record
from resolvent.text.batches import perplexity

PLAIN = "softmax"  # the rule that goes without saying
PAPER = {"first-order": 31.28, "first-order · mamba": 30.64}  # perplexities that the paper has in numbers, at 125M


@dataclass(frozen=True)
class Variant:
    """A structure with a rule, and the records of its seeds.

    mixing_madds  multiply-adds per token along the sequence, forward, in all layers: mean over the context
    cache_bytes   of all layers, for one sequence as long as the context, in float32
    """

    structure: str
    rule: str
    mixing_madds: float
    cache_bytes: int
    records: tuple[Record, ...]

    @property
    def name(self) -> str:
        return name_of(self.structure, self.rule)

    @cached_property
    def patterns(self) -> tuple[Pattern, ...]:
        """Those in it, each once."""
        config = self.records[0]["config"]["model"]
        return tuple(dict.fromkeys(p for layer in range(config["layers"]) for p, _ in _heads(config, layer)))

    @property
    def kind(self) -> str:
        """As the paper tells points apart."""
        if not any(p.recurrent for p in self.patterns):
            return "attention"
        return "cache-efficient" if all(isinstance(p, CacheEfficient) for p in self.patterns) else "recurrent"

    @property
    def grows(self) -> tuple[str, str]:
        """How reads per token and the cache grow, such as "O(log n)"; nothing of a stack of several patterns."""
        if len(self.patterns) > 1:
            return "", ""
        found = growth(self.patterns[0])
        return found.reads_per_token, found.cache_slots

    @property
    def context(self) -> int:
        return int(self.records[0]["config"]["task"]["context"])

    @property
    def parameters(self) -> int:
        return int(self.records[0]["parameters"])

    @property
    def milliseconds(self) -> float:
        """Of training, per thousand tokens, of the quickest seed: whatever else runs can only slow one down."""
        return min(float(1e6 * record["seconds"] / max(record["tokens"], 1)) for record in self.records)

    @property
    def scores(self) -> list[float]:
        """Of each seed, larger where better: minus the loss, so that differences are ratios of perplexities."""
        return [-float(record["evaluation"]["loss"]) for record in self.records]

    @property
    def perplexities(self) -> list[float]:
        return [perplexity(-score) for score in self.scores]

    @property
    def bits(self) -> list[float]:
        """Per byte, of each seed."""
        return [float(record["evaluation"]["bits_per_byte"]) for record in self.records]

    def at_length(self, context: int) -> list[float]:
        """Perplexities of each seed in contexts of that length; empty if they were not measured."""
        found = [e for record in self.records for e in record.get("lengths", ()) if e["context"] == context]
        return [perplexity(e["loss"]) for e in found]

    @property
    def lengths(self) -> list[int]:
        """Contexts at which its models were measured."""
        return sorted({e["context"] for record in self.records for e in record.get("lengths", ())})


def name_of(structure: str, rule: str = PLAIN) -> str:
    """`dense`, or `dense · tied`."""
    return structure if rule == PLAIN else f"{structure} · {rule}"


def variants(records: Sequence[Record]) -> list[Variant]:
    """One for each structure and rule, in the order of the records; its seeds in theirs."""
    _check(records)
    found: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        model = record["config"]["model"]
        key = (_spelled(model["pattern"]), _spelled(model["coefficients"]))
        found.setdefault(key, []).append(record)
    made = []
    for (structure, rule), own in found.items():
        seeds = [seed_of(record) for record in own]
        if len(set(seeds)) < len(seeds):
            raise ValueError(f"expected each seed of {name_of(structure, rule)} once, got {sorted(seeds)}.")
        madds, cache = _costs(own[0])
        made.append(Variant(structure, rule, madds, cache, tuple(sorted(own, key=seed_of))))
    return made


def seed_of(record: Record) -> int:
    return int(record["config"]["train"]["seed"])


def corpus_of(record: Record) -> str:
    return Path(record["config"]["task"]["corpus"]).name


def _check(records: Sequence[Record]) -> None:
    """Perplexities can be compared on one text, cut into contexts of one length."""
    tasks = [record["config"]["task"] for record in records]
    other = next((task["name"] for task in tasks if task["name"] != "text"), None)
    if other is not None:
        raise ValueError(f"expected records of runs on text, got one on '{other}'.")
    for key in ("sha256", "context"):
        values = {str(task[key]) for task in tasks}
        if len(values) > 1:
            raise ValueError(
                f"perplexities of different texts or contexts cannot be compared: expected one {key} in all records, "
                f"got {', '.join(sorted(values))}."
            )


def _costs(record: Record) -> tuple[float, int]:
    """Multiply-adds of mixing per token, and bytes of the cache: sums over layers, from the config alone."""
    config, n = record["config"]["model"], int(record["config"]["task"]["context"])
    heads, dim = config["heads"], config["dim"] // config["heads"]
    share = heads // (config["kv_heads"] or heads)
    rules = config["coefficients"]
    costs = [
        cost(p, n, count, dim, rule=rules if isinstance(rules, str) else rules[layer], kv_heads=count // share)
        for layer in range(config["layers"])
        for p, count in _heads(config, layer)
    ]
    return sum(c.forward_madds_per_token for c in costs), sum(c.cache_bytes for c in costs)


def _heads(config: dict[str, Any], layer: int) -> list[tuple[Pattern, int]]:
    """The patterns of a layer, each with how many neighbouring heads have it."""
    given = config["pattern"] if isinstance(config["pattern"], str) else config["pattern"][layer]
    each = [given] * config["heads"] if isinstance(given, str) else given
    return [(pattern(spec), len(list(same))) for spec, same in groupby(each)]


def _spelled(given: Any) -> str:
    """What all layers have, or what each has."""
    return given if isinstance(given, str) else " | ".join(_spelled(entry) for entry in given)

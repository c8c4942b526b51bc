"""Runs on text by structure and rule: what each costs at its context, and how well it predicts."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

from resolvent.analysis import cost, growth
from resolvent.errors import SettingError
from resolvent.model.config import ModelConfig
from resolvent.patterns import Pattern
from resolvent.rules.rope import rope_label, rope_setting
from resolvent.studies.grade import by_seed
from resolvent.tasks.text import Text
from resolvent.text.batches import perplexity
from resolvent.train.evaluations import TextEvaluation
from resolvent.train.record import Record

PLAIN = "softmax"  # the rule that names leave out
_PAPERS = "softmax:gate=mamba"  # and the paper's, where all recurrent structures have that one
PAPER = {  # perplexities that the paper has in numbers, at 125M; its gates start as Mamba's, its equation has one state
    "first-order": 31.28,
    "first-order · softmax:gate=mamba": 31.28,
    "first-order · mamba1:state=1": 30.64,
}


@dataclass(frozen=True)
class TextRun:
    """A record of a run on text, with its types.

    rope  of the measurements at other lengths that are meant, where it is not the one trained with
    """

    record: Record
    text: Text
    evaluation: TextEvaluation
    rope: str = ""

    @property
    def model(self) -> ModelConfig:
        return self.record.config.model

    @property
    def seed(self) -> int:
        return self.record.seed

    @property
    def source(self) -> str:
        return self.record.source

    @property
    def lengths(self) -> list[TextEvaluation]:
        """Measurements at other lengths than the one trained on, and at that one."""
        return [each for each in self.record.lengths if each.rope == self.rope]

    @property
    def perplexities(self) -> dict[int, float]:
        """By the length of the context, where they were measured at several."""
        return {each.context: perplexity(each.loss) for each in self.lengths}

    @property
    def longest(self) -> TextEvaluation | None:
        """In the longest contexts that were measured."""
        return max(self.lengths, key=lambda each: each.context, default=None)

    @property
    def positions(self) -> str:
        """What is unusual about its rotary positions: those it was trained with, and those it was measured with."""
        trained = rope_label(self.model.rope)
        return f"{trained} → {self.rope}".strip() if self.rope else trained


@dataclass(frozen=True)
class Variant:
    """A structure with a rule and rotary positions, and the runs of its seeds.

    positions     what is unusual about them: trained with, such as "near:within=16", or measured with, "→ ntk:factor=8"
    mixing_madds  multiply-adds per token along the sequence, forward, in all layers: mean over the context
    cache_bytes   of all layers, for one sequence as long as the context, in float32
    """

    structure: str
    rule: str
    mixing_madds: float
    cache_bytes: int
    runs: tuple[TextRun, ...]
    plain: str = PLAIN
    positions: str = ""

    @property
    def name(self) -> str:
        return name_of(self.structure, PLAIN if self.rule == self.plain else self.rule, self.positions)

    @cached_property
    def patterns(self) -> tuple[Pattern, ...]:
        """Those in it, each once."""
        model = self.runs[0].model
        return tuple(dict.fromkeys(p for layer in range(model.layers) for p in model.patterns_of(layer)))

    @property
    def kind(self) -> str:
        """As the paper tells points apart."""
        if not any(p.recurrent for p in self.patterns):
            return "attention"
        return "cache-efficient" if all(_is_cache_efficient(p, self.context) for p in self.patterns) else "recurrent"

    @property
    def growth(self) -> tuple[str, str]:
        """How reads per token and the cache grow, such as "O(log n)"; empty for a stack of several patterns."""
        if len(self.patterns) > 1:
            return "", ""
        law = growth(self.patterns[0])
        return law.reads_per_token, law.cache_slots

    @property
    def context(self) -> int:
        return self.runs[0].text.context

    @property
    def parameters(self) -> int:
        return self.runs[0].record.parameters

    @property
    def learning_rate(self) -> float:
        return self.runs[0].record.config.train.learning_rate

    def is_like(self, other: Variant) -> bool:
        """Whether both have the same cache and, but for 1 %, the same parameters."""
        apart = abs(self.parameters - other.parameters)
        return self.cache_bytes == other.cache_bytes and 100 * apart <= other.parameters

    @property
    def milliseconds(self) -> float:
        """Of training, per thousand tokens, of the quickest seed: whatever else runs can only slow one down."""
        return min(1e6 * run.record.seconds / max(run.record.tokens, 1) for run in self.runs)

    @property
    def scores(self) -> list[float]:
        """Of each seed, larger where better: minus the loss, so that differences are ratios of perplexities."""
        return [-run.evaluation.loss for run in self.runs]

    @property
    def perplexities(self) -> list[float]:
        return [perplexity(run.evaluation.loss) for run in self.runs]

    @property
    def bits(self) -> list[float]:
        """Per byte, of each seed."""
        return [run.evaluation.bits_per_byte for run in self.runs]

    def at_length(self, context: int) -> list[float]:
        """Perplexities of each seed in contexts of that length; empty if they were not measured."""
        return [run.perplexities[context] for run in self.runs if context in run.perplexities]

    @property
    def lengths(self) -> list[int]:
        """Contexts at which its models were measured."""
        return sorted({context for run in self.runs for context in run.perplexities})


def name_of(structure: str, rule: str = PLAIN, positions: str = "") -> str:
    """`dense`, `dense · tied`, or `dense · near:within=16`."""
    return " · ".join([structure, *([] if rule == PLAIN else [rule]), *filter(None, [positions])])


def variants(records: Sequence[Record]) -> list[Variant]:
    """One for each structure, rule and kind of positions, in the order of the records; its seeds in theirs."""
    made = []
    for (structure, rule, positions), runs in by_seed(_runs(records), _variant_of).items():
        made.append(Variant(structure, rule, *_costs(runs[0]), tuple(runs), positions=positions))
    rules = {variant.rule for variant in made if variant.kind != "attention"}
    plain = _PAPERS if rules == {_PAPERS} else PLAIN
    return [dataclasses.replace(v, plain=PLAIN if v.kind == "attention" else plain) for v in made]


def _variant_of(run: TextRun) -> tuple[str, str, str]:
    return run.model.pattern_label, run.model.rule_label, run.positions


def _is_cache_efficient(p: Pattern, n: int) -> bool:
    """Whether it reads all that is held, which is less than everything, and not at the same distances everywhere."""
    reads_all_held = all(stage.contiguous_columns for stage in p.stages)
    return reads_all_held and p.slots(n) < n - 1 and not all(stage.is_shifted(n) for stage in p.stages)


def _runs(records: Sequence[Record]) -> list[TextRun]:
    """Perplexities can be compared on one text, cut into contexts of one length."""
    runs = []
    for record in records:
        task, evaluation = record.config.task, record.evaluation
        if not isinstance(task, Text) or not isinstance(evaluation, TextEvaluation):
            raise SettingError(f"expected records of runs on text, got one on '{task.name}'.")
        ropes = dict.fromkeys(["", *(each.rope for each in record.lengths)])
        runs += [TextRun(record, task, evaluation, rope) for rope in ropes]
    compared = {"sha256": {run.text.sha256 for run in runs}, "context": {str(run.text.context) for run in runs}}
    for name, values in compared.items():
        if len(values) > 1:
            raise SettingError(
                f"perplexities of different texts or contexts cannot be compared: expected one {name} in all records, "
                f"got {', '.join(sorted(values))}."
            )
    return runs


def _costs(run: TextRun) -> tuple[float, int]:
    """Multiply-adds of mixing per token, and bytes of the cache: sums over layers, from the config alone."""
    model, n = run.model, run.text.context
    rope = rope_setting(run.rope) if run.rope else model.rope
    share = model.heads // (model.kv_heads or model.heads)
    costs = [
        cost(
            p,
            n,
            heads=heads,
            head_dim=model.dim // model.heads,
            rule=model.rule_of(layer),
            kv_heads=heads // share,
            rope=rope,
        )
        for layer in range(model.layers)
        for p, heads in _heads(model, layer)
    ]
    return sum(c.forward_madds_per_token for c in costs), sum(c.cache_bytes for c in costs)


def _heads(model: ModelConfig, layer: int) -> list[tuple[Pattern, int]]:
    """The patterns of a layer, each with the number of neighboring heads that have it."""
    patterns = model.patterns_of(layer)
    each = patterns * model.heads if len(patterns) == 1 else patterns
    return [(p, len(list(same))) for p, same in groupby(each)]

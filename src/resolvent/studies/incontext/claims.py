"""What the paper says of text, and what is asked beyond it, as statements about losses on this language."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from resolvent.patterns import as_pattern
from resolvent.studies.incontext.results import InContextResult, Setting
from resolvent.studies.language.claims import BAND, Compared, Curve, Most, rules
from resolvent.studies.study import Claims, Graded

Comparison = Compared | Curve | Most

_CACHE = ("exponential", "exponential+cache"), ("quadratic", "quadratic+cache")
_PAY = "asked, not claimed: fewer hops pay at the same cache"
_READS = "asked, not claimed: fewer hops pay at the same cache and the same reads"

PAPER: tuple[Comparison, ...] = (
    Compared("§5.3: at O(n) the resolvent wins the bracket, surpassing attention", "dense", "attention"),
    Compared("§5.3: O(√n) gives the better results among sublinear designs", "quadratic", "exponential"),
    *(Compared("§5.3: cache-efficient variants always perform slightly worse", one, other) for one, other in _CACHE),
    *(Compared("§5.3: the gap of cache-efficient variants remains small", other, one, "close")
      for one, other in _CACHE),
    Compared("§5.3: local attention is largely beaten by its recurrent counterpart", "order:8", "local:8"),
    Compared("§5.3: first order still beats local attention", "first-order", "local:8"),
    *(Compared("§5.3: large gains occur when moving off O(1) to sublinear access", name, "first-order")
      for pair in _CACHE for name in pair),
    *(Most("§7: sublinear access captures most of the accuracy of dense mixing", name, "attention")
      for pair in _CACHE for name in pair),
    Curve("§5.3: the points trace a clear speed-accuracy Pareto curve",
          (("first-order",), *_CACHE, ("attention", "dense"))),
    *BAND,
)  # fmt: skip


def statements(context: int) -> list[Comparison]:
    """The paper's, and at the caches of this length those about hops."""
    asked: list[Comparison] = []
    for name in ("exponential+cache", "quadratic+cache"):
        size = as_pattern(name).slots(context)
        asked += [
            Compared(_PAY, f"binomial:{size},lazy", name),
            Compared(_PAY, f"binomial:{size}", name),
            Compared(_READS, f"binomial:{size},lazy", f"order:{size}"),
        ]
    return [*PAPER, *asked]


def graded(groups: Mapping[Setting, Sequence[InContextResult]]) -> Claims:
    """At every budget; named as at the first one, where caches of other lengths are others."""
    named = statements(next(iter(groups)).context)
    made = []
    for setting, group in groups.items():
        by_name = {result.structure: result for result in group}
        name_of_setting = str(setting) if len(groups) > 1 else ""
        for name, each in zip(named, statements(setting.context), strict=True):
            made.append(Graded(each.source, str(name), each.grade(by_name), name_of_setting))
    sizes = " Numbers of slots are those of the first column; elsewhere, those of the same caches are compared."
    others = sizes if len({setting.context for setting in groups}) > 1 else ""
    rule = f"Losses are compared above the floor on the same documents.{others} {rules(named)}"
    return Claims("What the paper says of text, graded on this language", rule, tuple(made))

"""What the paper says of text, and what is asked beyond it, as statements about losses on this language."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from resolvent.patterns import as_pattern
from resolvent.studies.incontext.results import InContextResult, Setting
from resolvent.studies.language.claims import Compared, Curve, Most, rules
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
    """At every budget."""
    made, used = [], []
    for setting, group in groups.items():
        by_name = {result.structure: result for result in group}
        for each in statements(setting.context):
            comparison = f"{setting}: {each}" if len(groups) > 1 else str(each)
            made.append(Graded(each.source, comparison, each.grade(by_name)))
            used.append(each)
    rule = f"Losses are compared above the floor on the same documents. {rules(used)}"
    return Claims("What the paper says of text, graded on this language", rule, tuple(made))

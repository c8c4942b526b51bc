"""Mamba's rule at first order: what tells it from the paper's, one factor at a time, and what its states are worth."""

from __future__ import annotations

from collections.abc import Sequence

from resolvent.studies.grade import mean
from resolvent.studies.language.claims import LikeForLike, Most, TextStatement
from resolvent.studies.language.figures import RULES as RULES_CAPTION
from resolvent.studies.language.figures import rules_figure
from resolvent.studies.language.study import TextStudy
from resolvent.studies.language.table import Column, spread
from resolvent.studies.language.variants import PAPER, Variant, name_of

_MAMBAS = ("mamba1:state=1,decay=0.5", "mamba2:state=1,decay=0.5")  # with decays that start where the gates do
FACTORS = (  # what tells Mamba's rules from the softmax rule at first order, changed one at a time
    _MAMBAS[1],
    *(f"{rule},{factor}" for rule in reversed(_MAMBAS) for factor in ("input=complement", "vectors=ones")),
    f"{_MAMBAS[0]},input=complement,vectors=ones",
    f"{_MAMBAS[0]},skip=true",
)
STATES = ("mamba2:state=4,decay=0.5", "mamba2:decay=0.5")  # of 4 and 16 numbers a channel
SAME_CACHE = "order:4"  # whose four tokens, with inputs, outputs and the keys of both, are the cache of 16 states
RULES = (
    "softmax",
    "softmax:gate=mamba",
    "mamba1:state=1",
    _MAMBAS[0],
    "mamba2:state=1",
    "softmax:conv=4",
    "mamba1:conv=4,state=1,decay=0.5",
    "mamba2",
    *FACTORS,
    *STATES,
)


def statements(_: Sequence[Variant]) -> list[TextStatement]:
    """Each of Mamba's rules beside the paper's where gates start alike, one with 16 × the cache; then each factor.

    Last, states against what the paper's rule does with a cache of their size: a convolution, or more reads.
    """
    source = "appendix, Table 2: at first order Mamba's rule gives a small yet noticeable gain"
    pairs = (
        ("mamba1:state=1", "softmax:gate=mamba"),
        ("mamba2:state=1", "softmax:gate=mamba"),
        *((rule, "softmax") for rule in _MAMBAS),
        ("mamba1:conv=4,state=1,decay=0.5", "softmax:conv=4"),
        ("mamba2", "softmax"),
    )
    changed = [(rule, factor) for factor in FACTORS for rule in _MAMBAS if factor.startswith(f"{rule},")]
    return [
        *(LikeForLike(source, *(name_of("first-order", rule) for rule in pair)) for pair in pairs),
        *(
            Most(
                "asked, not claimed: which factor explains the gap",
                name_of("first-order", factor),
                "first-order",
                name_of("first-order", rule),
            )
            for rule, factor in changed
        ),
        *(
            LikeForLike("asked, not claimed: what states are worth at equal cache", name_of("first-order", one), other)
            for one, other in zip(STATES, (name_of("first-order", "softmax:conv=4"), SAME_CACHE), strict=True)
        ),
    ]


def columns(variants: Sequence[Variant]) -> list[Column]:
    """Parameters and bytes to the last digit, since they are to be equal; learning rates, since they are not."""
    first = variants[0]

    def cache(v: Variant) -> str:
        times = v.cache_bytes / first.cache_bytes
        return f"{v.cache_bytes:,} B" + ("" if v.cache_bytes == first.cache_bytes else f" ({times:.3g} ×)")

    def change(v: Variant) -> str:
        return "" if v is first else f"{mean(v.perplexities) / mean(first.perplexities) - 1:+.1%}"

    def rule(v: Variant) -> str:
        return v.rule if v.structure == first.structure else f"{v.rule} ({v.structure})"

    return [  # names of rules are long: few others fit a terminal beside them
        Column("rule", rule),
        Column("params", lambda v: f"{v.parameters:,}", brief=False),
        Column("cache", cache, brief=False),
        Column("learning rate", lambda v: f"{v.learning_rate:g}", brief=False),
        Column("seeds", lambda v: str(len(v.runs)), brief=False),
        Column("ms per 1k tokens", lambda v: f"{v.milliseconds:.0f}", brief=False),
        Column("perplexity", lambda v: spread(v.perplexities, 3)),
        Column("bits per byte", lambda v: spread(v.bits, 3), brief=False),
        Column("paper", lambda v: f"{PAPER[v.name]:.2f}" if v.name in PAPER else "–", brief=False),
        Column("change", change),
    ]


def notes(variants: Sequence[Variant]) -> list[str]:
    few, most = (pick(variant.parameters for variant in variants) for pick in (min, max))
    matched = "MLPs are as wide as makes parameters equal." if 100 * (most - few) <= few else "Parameters differ."
    first_order = "" if len({variant.structure for variant in variants}) > 1 else "First order. "
    return [
        f"{first_order}Cache: of all layers for one sequence, float32; in brackets, against the first row. {matched} "
        "ms per 1k tokens: training time of the quickest seed. Perplexity and bits per byte: all of the validation "
        "split in windows that do not overlap, mean ± half the spread over seeds. Change: of the mean perplexity, "
        "against the first row."
    ]


MAMBA = TextStudy(
    name="mamba",
    title="Mamba's rule at first order",
    about="First order with the paper's rule, Mamba's and Mamba-2's, at equal parameters: the paper's ablation.",
    page="mamba.html",
    structures=("first-order",),
    rules=RULES,
    beside=((SAME_CACHE, "softmax"),),
    columns=columns,
    notes=notes,
    statements=statements,
    figure=rules_figure,
    caption=RULES_CAPTION,
    matched=True,
    first_seed=10,
)

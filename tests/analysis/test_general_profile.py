"""Profiles of pairs, tables and lifetimes: distance to the bounds, growth and cost."""

import io

import pytest

import resolvent as rv
from resolvent.analysis import growth
from tests.general_patterns import NAMES, cases


def test_profiles_say_how_far_they_are_from_it() -> None:
    figures = {spec: rv.analyze(spec, 1024) for spec in ("exponential+cache", "binomial:10", "binomial:27", "local:8")}
    assert [(p.max_hops, p.cache_slots, p.least.hops) for p in figures.values()][:3] == [
        (10, 10, 5),
        (5, 10, 5),
        (3, 27, 3),
    ]
    assert figures["binomial:10"].least.congestion == 103
    assert figures["exponential+cache"].to_dict()["least"] == {"hops": 5, "congestion": 103}
    local = figures["local:8"].least
    assert (local.hops, local.congestion) == (None, None)  # not all pairs are connected
    text = str(figures["exponential+cache"])
    assert "5 is the least of any pattern with 10 slots" in text
    assert "103 is the least of any pattern with 10 slots" in text
    assert "is the least" not in str(figures["local:8"])


def test_a_table_has_no_growth_and_may_be_too_short_to_copy() -> None:
    p = rv.explicit(lambda i: [i - 1, i // 2] if i > 1 else range(i), 100)
    profile = rv.analyze(p, 80)
    assert set(vars(profile.growth).values()) == {"–", "not defined"}
    assert profile.congestion is profile.congestion_nearby is profile.to_dict()["congestion"] is None
    assert "– (copying 80 tokens takes 160 positions, and it has 100)" in str(profile)
    assert rv.analyze(p, 50).congestion is not None
    assert "–" in str(rv.compare(p, "order:2", n=80)).splitlines()[2]


GROWTH = {
    "fenwick": ("O(log n)", "O(log n)", "O(log n)", "O(n)", "fitted"),
    "binomial:1": ("O(1)", "O(1)", "O(n)", "O(n)", "proved"),
    "binomial:2": ("O(1)", "O(1)", "O(√n)", "O(n)", "proved"),
    "binomial:10,lazy": ("O(1)", "O(1)", "O(n^(1/10))", "O(n)", "proved"),
    "attention/first-order": ("O(n)", "O(n)", "O(1)", "O(1)", "fitted"),
    "exponential/order:8": ("O(log n)", "O(n)", "O(n)", "O(n)", "fitted"),
    "local:8/exponential+cache": ("O(log n)", "O(log n)", "O(log n)", "O(n / log n)", "fitted"),
}


@pytest.mark.parametrize("spec", GROWTH)
def test_growth(spec: str) -> None:
    law = growth(rv.pattern(spec))
    assert (law.reads_per_token, law.cache_slots, law.max_hops, law.congestion, law.basis) == GROWTH[spec]


def test_growth_of_a_function() -> None:
    law = growth(rv.explicit(lambda i: {i - 1, i // 2} if i else []))
    assert (law.reads_per_token, law.basis) == ("O(1)", "fitted")


def test_cost_by_counting() -> None:
    """Pairs keep inputs in A's slots and outputs in B's."""
    for name in NAMES:
        case, n, heads, dim = cases(50)[name], 50, 3, 8
        c = rv.cost(case.pattern, n, heads=heads, head_dim=dim)
        entries = n + sum(map(len, case.later)) + sum(map(len, case.later if case.first is None else case.first))
        assert c.forward_madds_per_token == pytest.approx(entries * 2 * heads * dim / n)
        vectors = {"values", "keys_a"}, {"outputs", "keys_b"}
        size = 0
        for stage in case.pattern.stages:
            kept = (vectors[0] if stage.direct == "all" else set()) | (vectors[1] if stage.recurrent else set())
            size += stage.slots(n) * len(kept if stage.reads_several else kept - {"keys_b"})
        assert c.cache_bytes == size * heads * dim * 4
        assert c.decode_madds_last_token == 2 * heads * dim * (
            1 + len(case.later[-1]) + len((case.later if case.first is None else case.first)[-1])
        )


def test_the_nine_fit_into_80_columns() -> None:
    """Names in full, and below the table what the brackets mean; the law that it states holds in every row."""
    from rich.console import Console

    from resolvent.report import tables

    console = Console(width=200, record=True, file=io.StringIO())
    console.print(tables.comparison(list(rv.compare(n=1024, effort="quick"))))
    lines = [line.rstrip() for line in console.export_text().splitlines()]
    assert max(map(len, lines)) <= 80
    assert all(any(line.split()[:1] == [spec] for line in lines) for spec in rv.PAPER_STRUCTURES)
    assert any("(least): of any pattern with as many slots that connects every pair" in line for line in lines)
    assert any("slots × congestion ≥ n - 1 in every row and for (least)" in line for line in lines)
    check_the_law([line for line in lines if line.split()[:1] and line.split()[0] in rv.PAPER_STRUCTURES])
    check_the_law(str(rv.compare(n=1024, effort="quick")).splitlines()[2:11])


def check_the_law(rows: list[str]) -> None:
    """Slots × congestion ≥ n - 1, as printed: of the pattern, of the bracket, and of the lower of two bounds."""
    assert len(rows) == 9
    for row in rows:
        words = row.replace(",", "").replace(" … ", "…").split()
        slots = int(words[2])
        after = words[4:] if words[3] == "∞" else words[5:]  # hops with their bracket, then the mean
        loads = [word.strip("()").partition("…")[0] for word in after[1:-1]]
        assert len(loads) == (1 if words[0] == "local:8" else 2), row
        assert all(slots * float(load.replace("∞", "inf")) >= 1023 for load in loads), row

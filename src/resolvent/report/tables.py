"""Tables for the terminal: profiles and pattern families."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from resolvent.analysis import Profile, growth
from resolvent.analysis.comparison import congestion_and_least, hops_and_least
from resolvent.analysis.lower_bounds import NEARBY
from resolvent.analysis.profile import describe_number
from resolvent.patterns import FAMILIES, MODIFIERS, Pattern, pattern


def comparison(profiles: Sequence[Profile]) -> Table:
    """The theory half of the paper's Table 1, complete."""
    n = profiles[0].n
    table = Table(
        title=f"n = {n:,} tokens: reads, cache, hops and congestion",
        box=box.SIMPLE_HEAD,
        padding=0,  # the paper's nine fit into 80 columns
    )
    table.add_column("structure\n[dim]growth is[/dim]", overflow="fold")
    for name in ("reads\n", "cache\n", "max hops\n[dim](least)[/dim]", "mean\n", "congestion\n[dim](least)[/dim]"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("nearby\n", justify="right", no_wrap=True)
    for profile in profiles:
        law, unreachable = profile.growth, profile.unreachable_pairs > 0
        table.add_row(
            Text.assemble((str(profile.pattern).replace("/", "/\n"), "bold"), "\n", (law.basis, "dim")),
            _cell(f"{profile.reads_per_token.max:,}", law.reads_per_token),
            _cell(f"{profile.cache_slots:,}", law.cache_slots),
            _cell(hops_and_least(profile), "" if unreachable else law.max_hops),
            f"{profile.mean_hops:,.2f}" + ("*" if unreachable else ""),
            _cell(congestion_and_least(profile), "" if unreachable else law.congestion),
            describe_number(profile.congestion_nearby),
        )
    notes = [
        "(least): of any pattern with as many slots that connects every pair.",
        "slots × congestion ≥ n - 1 in every row and for (least).",
        "growth: proved in docs/theory.md, or fitted to computed values.",
        f"nearby: the largest lower bound on congestion within {NEARBY} tokens of n.",
    ]
    if any(profile.unreachable_pairs for profile in profiles):
        notes.append("∞ some pairs have no path.   * over the pairs with a path.")
    if any(profile.congestion is None for profile in profiles):
        notes.append("– copying n tokens takes 2n positions, and the table has fewer.")
    table.caption = "\n".join(notes)
    return table


def families(n: int) -> list[Table]:
    """All pattern families, each with a drawing and its cost; those of others with their source and claim."""
    return [_own_families(n), _published_families(n)]


def _own_families(n: int) -> Table:
    table = _family_table(f"pattern families (costs at n = {n:,})", "a token reads")
    table.caption = "■ A and B   □ A only   ◆ B only\n" + "\n".join(
        [
            *(f"append {name}: {meaning}" for name, meaning in MODIFIERS.items()),
            "A/B: the A of the one, the B of the other",
        ]
    )
    for family in FAMILIES.values():
        if not family.source:
            example = f"\n[dim]e.g.[/dim] {escape(_short(family.sample))}" if family.argument else ""
            meaning = Text.assemble(family.meaning, ("\nclaim: " + family.claim if family.claim else "", "dim"))
            table.add_row(escape(family.signature) + example, *_family_cells(pattern(family.sample), meaning, n))
    for example in ("exponential+cache", "quadratic+cache"):
        meaning = Text("the same, rounded to what the previous token held")
        table.add_row(example, *_family_cells(pattern(example), meaning, n))
    meaning = Text("two patterns: A reads every past position, B feeds back the previous output")
    table.add_row("attention/first-order", *_family_cells(pattern("attention/first-order"), meaning, n))
    return table


def _published_families(n: int) -> Table:
    table = _family_table(f"published by others (costs at n = {n:,})", "a token reads, by whom, and their claim")
    table.caption = "their reads, recurrent like all families; append +attention for no feedback"
    for family in FAMILIES.values():
        if family.source:
            example = f"\n[dim]e.g.[/dim]\n{escape(family.sample)}" if family.argument else ""
            meaning = Text.assemble(
                family.meaning, (f"\n{family.source}", "italic"), (f"\nclaim: {family.claim}", "dim")
            )
            table.add_row(escape(family.signature) + example, *_family_cells(pattern(family.sample), meaning, n))
    return table


def _family_table(title: str, meaning: str) -> Table:
    table = Table(title=title, caption_justify="left", box=box.SIMPLE_HEAD, show_lines=True, padding=(0, 1, 0, 0))
    table.add_column("spelling", no_wrap=True, style="bold")
    table.add_column("picture", no_wrap=True)
    table.add_column(meaning)
    table.add_column("reads", justify="right", no_wrap=True)
    table.add_column("cache", justify="right", no_wrap=True)
    return table


def _family_cells(p: Pattern, meaning: Text, n: int) -> tuple[str | Text, ...]:
    """A drawing, the meaning, reads and slots; those of a table at its own length, where it has no growth."""
    picture = "\n".join(p.draw(min(8, p.limit or 8)).splitlines()[1:])
    if p.limit is not None:
        return Text(picture), meaning, f"{p.widest_row(p.limit):,}", f"{p.slots(p.limit):,}"
    law = growth(p)
    reads = f"{p.widest_row(n):,}\n[dim]{law.reads_per_token}[/dim]"
    return Text(picture), meaning, reads, f"{p.slots(n):,}\n[dim]{law.cache_slots}[/dim]"


def _short(spelling: str) -> str:
    return spelling if len(spelling) <= 20 else f"{spelling[:16]}…"


def _cell(value: str, law: str) -> str:
    return f"{value}\n[dim]{law}[/dim]" if law else value

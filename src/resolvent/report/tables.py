"""Profiles as tables for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from resolvent.analysis import Profile, growth
from resolvent.analysis.growth import most_reads
from resolvent.analysis.profile import describe
from resolvent.patterns import FAMILIES, MODIFIERS, Pattern, pattern

_EXAMPLES = {
    "local:w": "local:4",
    "order:k": "order:3",
    "stride:EXPR": "stride:k**3+1",
    "offsets:LIST": "offsets:1,4,9",
}


def comparison(profiles: Sequence[Profile]) -> Table:
    """The theory half of the paper's Table 1, no cell left empty."""
    n = profiles[0].n
    table = Table(
        title=f"n = {n:,} tokens: what a token reads, keeps and can reach",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    table.add_column("structure", style="bold", no_wrap=True)
    for name in ("reads", "cache", "max hops", "mean", "congestion"):
        table.add_column(name, justify="right", no_wrap=True)
    for profile in profiles:
        law, unreachable = profile.growth, profile.unreachable_pairs > 0
        table.add_row(
            str(profile.pattern),
            _cell(f"{profile.reads_per_token.max:,}", law.reads_per_token),
            _cell(f"{profile.cache_slots:,}", law.cache_slots),
            _cell("∞" if unreachable else f"{profile.max_hops:,}", "" if unreachable else law.max_hops),
            f"{profile.mean_hops:,.2f}" + (" *" if unreachable else ""),
            _cell(describe(profile.congestion), "" if unreachable else law.congestion),
        )
    if any(profile.unreachable_pairs for profile in profiles):
        table.caption = "∞ some pairs have no path.   * over the pairs that have one."
    return table


def speeds(report: dict[str, Any]) -> Table:
    """A bench report: milliseconds, their range, and how many times faster than the yardstick."""
    shape = f"batch {report['batch']}, {report['heads']} heads of {report['head_dim']}, {report['dtype']}"
    table = Table(
        title=f"n = {report['n']:,} tokens, {shape}, {report['threads']} threads",
        caption=f"medians of {report['rounds']} interleaved rounds (least … most); "
        f"matrix products reach {report['matmul_gflops']:.0f} GFLOP/s here",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    table.add_column("case", style="bold", no_wrap=True)
    for name in ("forward, ms", "×", "with backward, ms", "×"):
        table.add_column(name, justify="right", no_wrap=True)
    for timing in report["timings"]:
        cells = []
        for part in ("forward", "both"):
            least, most = timing[f"{part}_range_ms"]
            cells.append(f"{timing[f'{part}_ms']:.1f} [dim]({least:.1f} … {most:.1f})[/dim]")
            cells.append(f"{timing[f'{part}_speedup']:.1f}")
        table.add_row(timing["case"], *cells)
    return table


def families(n: int) -> Table:
    """Every family with a small picture and its cost."""
    table = Table(
        title=f"pattern families (costs at n = {n:,})",
        caption="■ A and B   □ A only   ◆ B only\n"
        + "\n".join(f"append {name}: {meaning}" for name, meaning in MODIFIERS.items()),
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        show_lines=True,
        padding=(0, 1, 0, 0),
    )
    table.add_column("spelling", no_wrap=True, style="bold")
    table.add_column("picture", no_wrap=True)
    table.add_column("a token reads")
    table.add_column("reads", justify="right", no_wrap=True)
    table.add_column("cache", justify="right", no_wrap=True)
    for spelling, meaning in FAMILIES.items():
        example = _EXAMPLES.get(spelling, spelling)
        shown = spelling if example == spelling else f"{spelling}\n[dim]as in[/dim] {example}"
        table.add_row(shown, *_family_cells(pattern(example), meaning, n))
    for example in ("exponential+cache", "quadratic+cache"):
        meaning = "the same, rounded to what the previous token held"
        table.add_row(example, *_family_cells(pattern(example), meaning, n))
    return table


def _family_cells(p: Pattern, meaning: str, n: int) -> tuple[str | Text, ...]:
    law = growth(p)
    picture = "\n".join(p.draw(8).splitlines()[1:])
    reads = f"{most_reads(p, n):,}\n[dim]{law.reads_per_token}[/dim]"
    return Text(picture), meaning, reads, f"{p.slots(n):,}\n[dim]{law.cache_slots}[/dim]"


def _cell(value: str, law: str) -> str:
    return f"{value}\n[dim]{law}[/dim]" if law else value

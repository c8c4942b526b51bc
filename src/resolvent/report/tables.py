"""Profiles as tables for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.markup import escape
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


def speeds(report: dict[str, Any], length: dict[str, Any]) -> Table:
    """A bench report at one length: milliseconds, their range, and how they compare."""
    shape = f"batch {report['batch']}, {report['heads']} heads of {report['head_dim']}, {report['dtype']}"
    table = Table(
        title=f"n = {length['n']:,} tokens, {shape}, {report['threads']} threads",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    table.add_column("case", style="bold", no_wrap=True)
    for name in ("forward,\nms", "\n×", "of\nbound", "with back-\nward, ms", "\n×", "of\nbound"):
        table.add_column(name, justify="right", no_wrap=True)
    with_memory = any(timing["memory"] is not None for timing in length["timings"])
    if with_memory:
        table.add_column("memory,\n× x", justify="right", no_wrap=True)
    for timing in length["timings"]:
        cells = [cell for part in ("forward", "both") for cell in _part_cells(timing[part])]
        memory = [_number(timing["memory"], "{:,.1f}")] if with_memory else []
        table.add_row(escape(timing["case"]), *cells, *memory)
    return table


def steps(report: dict[str, Any], position: dict[str, Any]) -> Table:
    """Decoding at one position: microseconds per token, and what the cache holds."""
    shape = f"batch {report['batch']}, {report['heads']} heads of {report['head_dim']}, {report['dtype']}"
    table = Table(
        title=f"one more token after {position['n']:,}, {shape}, {report['threads']} threads",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    table.add_column("case", style="bold", no_wrap=True)
    for name in ("µs", "least…most", "×", "cache, KiB"):
        table.add_column(name, justify="right", no_wrap=True)
    for step in position["steps"]:
        least, most = step["range_us"]
        cells = [f"{step['us']:,.0f}", f"{least:,.0f}…{most:,.0f}", f"{step['speedup']:,.1f}"]
        table.add_row(escape(step["case"]), *cells, f"{step['cache_bytes'] / 1024:,.0f}")
    return table


def speed_growth(report: dict[str, Any]) -> Table:
    """How the times of a bench report grow: per doubling between lengths, and as a power of n."""
    table = Table(title="growth of time", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("case", style="bold", no_wrap=True)
    for name in ("forward, × per doubling", "power", "with backward, × per doubling", "power"):
        table.add_column(name, justify="right")
    for case in report["growth"]:
        cells = []
        for trend in (case["forward"], case["both"]):
            cells.append(" ".join(f"{factor:.2f}" for factor in trend["per_doubling"]) if trend else "–")
            cells.append(f"n^{trend['exponent']:.2f}" if trend else "–")
        table.add_row(escape(case["case"]), *cells)
    return table


def speed_notes(report: dict[str, Any]) -> str:
    """What the numbers of a bench report mean, and the machine's bounds."""
    machine, notes = report["machine"], []
    timings = [timing for length in report["lengths"] for timing in length["timings"]]
    compared = report["yardstick"] != "none"
    notes.append(
        f"ms: median of {report['rounds']} interleaved rounds, and the least…most."
        + (f"  ×: times as fast as {report['yardstick']}{_own_pattern(report)}." if compared else "")
    )
    notes.append(
        f"machine, {report['threads']} threads: matrix products {machine['matmul_gflops']:.0f} GFLOP/s; loads "
        f"{machine['l1_gbs']:.0f} GB/s from L1, {machine['l2_gbs']:.0f} from L2, {machine['dram_gbs']:.0f} from memory."
    )
    notes.append(
        "of bound, patterns: bytes that must be loaded (ka, x, kb, y of every source of every token; 3 times that with "
        "backward) at L2's speed, over the time; more than 100% where rows stay in L1."
    )
    if any(timing["bound"] == "matmul" for timing in timings):
        notes.append(
            "of bound, sdpa and paper: 2·n²·D operations per head (paper: twice that; 3.5 times that with backward) at "
            "the speed of matrix products, over the time."
        )
    if any(timing["memory"] is not None for timing in timings):
        notes.append(
            "memory: peak of forward with backward beyond the inputs, gradients included, over the bytes of x."
        )
    notes += [f"{who}: {note}." for who, note in _grouped(timings, "note")]
    missing = [
        {"case": case["case"], "reason": f"not available at n = {length['n']:,}, {case['reason']}"}
        for length in report["lengths"]
        for case in length["missing"]
    ]
    return "\n".join(notes + [f"{who}: {why}." for who, why in _grouped(missing, "reason")])


def _grouped(cases: Sequence[dict[str, Any]], key: str) -> list[tuple[str, str]]:
    """Which cases something is said of, and what, each said once."""
    said: dict[str, dict[str, None]] = {}
    for case in cases:
        if case[key]:
            said.setdefault(case[key], {})[case["case"]] = None
    return [(", ".join(names), what) for what, names in said.items()]


def _own_pattern(report: dict[str, Any]) -> str:
    """Where the yardstick depends on the pattern, its cases carry the pattern's name."""
    names = [case["case"] for length in report["lengths"] for case in length["timings"] + length["missing"]]
    return "" if report["yardstick"] in names else " on the same pattern"


def _part_cells(part: dict[str, Any] | None) -> tuple[str, str, str]:
    if part is None:
        return "–", "–", "–"
    least, most = (_milliseconds(value) for value in part["range_ms"])
    times = f"{_milliseconds(part['ms'])}\n[dim]{least}…{most}[/dim]"
    return times, _number(part["speedup"], "{:.1f}"), _number(part["share"], "{:.0%}")


def _milliseconds(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else form.format(value)


def training_step(step: dict[str, Any]) -> str:
    """One line about a step of training."""
    memory = "" if step["peak_bytes"] is None else f", {step['peak_bytes'] / 2**20:,.0f} MiB at its peak"
    return f"  {step['pattern']:18} a training step on {step['n']:,} tokens: {step['seconds']:.2f} s{memory}"


def long_text(found: dict[str, Any]) -> str:
    """What decoding a long text was like, at its start and at its end."""
    first, last = found["first_seconds"], found["last_seconds"]
    memory = ""
    if found["first_resident_bytes"] is not None:
        memory = (
            f"  resident memory    {found['first_resident_bytes'] / 2**20:,.1f} MiB early, "
            f"{found['last_resident_bytes'] / 2**20:,.1f} MiB at the end\n"
        )
    return (
        f"{found['pattern']}: {found['tokens']:,} tokens decoded one by one\n"
        f"  time per token     {1e3 * first:.2f} ms in the first tenth, {1e3 * last:.2f} in the last: "
        f"{last / first:.2f} ×\n{memory}"
        f"  cache              {found['cache_bytes'] / 1024:,.0f} KiB, fixed before the first token\n"
        f"  logits             within {found['difference']:.1e} of the full forward pass on a prefix"
    )


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

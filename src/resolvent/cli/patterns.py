"""Commands about patterns: list, analyze, draw and compare them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console

from resolvent.analysis.comparison import Comparison
from resolvent.analysis.profile import Profile, analyze
from resolvent.cli.shared import (
    AsJson,
    HeadDim,
    Heads,
    HowHard,
    Length,
    Rule,
    app,
    complete_pattern,
    progress,
    say_written,
)
from resolvent.errors import SettingError
from resolvent.patterns import FAMILIES, MODIFIERS, PAPER_STRUCTURES, Pattern, explicit, pattern

Spec = Annotated[
    str | None,
    typer.Argument(
        metavar="PATTERN",
        help="For example exponential+cache, or attention/first-order; see 'resolvent patterns'.",
        autocompletion=complete_pattern,
    ),
]
MaskFile = Annotated[
    Path | None,
    typer.Option(
        "--mask",
        help="Instead of PATTERN: a boolean mask of shape (n, n) in .npy (row i reads column j), n at most its size.",
    ),
]


@app.command("patterns")
def list_patterns(*, n: Length = 1024, as_json: AsJson = False) -> None:
    """List the pattern families, each with a drawing and its cost."""
    if as_json:
        families = {family.signature: family.meaning for family in FAMILIES.values()}
        published = {
            family.signature: {"source": family.source, "claim": family.claim}
            for family in FAMILIES.values()
            if family.source
        }
        content = {"families": families, "published": published, "modifiers": MODIFIERS, "paper": PAPER_STRUCTURES}
        print(json.dumps(content, indent=2, ensure_ascii=False))
        return
    from resolvent.report import tables

    for table in tables.families(n):
        Console().print(table)


@app.command("analyze")
def analyze_pattern(
    spec: Spec = None,
    *,
    mask: MaskFile = None,
    n: Length = 1024,
    as_json: AsJson = False,
    plot: Annotated[Path | None, typer.Option(help="Write a page of figures: mask, cache, hops, load, growth.")] = None,
    copy_routing: Annotated[
        bool,
        typer.Option("--copy-routing", help="Also print a routing that copies n tokens (drawing or JSON)."),
    ] = False,
    effort: HowHard = "search",
    heads: Heads = 12,
    head_dim: HeadDim = 64,
    rule: Rule = "softmax",
) -> None:
    """Analyze a pattern at length n: reads, cache, hops, congestion and cost.

    Hops count the steps from an input to a later output. Congestion is the
    number of tokens that must share one state when n tokens are copied by n
    positions; its bounds are proven.
    """
    p, n = _chosen(spec, mask, n)
    with progress(f"analyzing {p} on {n:,} tokens", 1):
        profile = analyze(p, n, effort=effort, heads=heads, head_dim=head_dim, rule=rule)
    routing = None if profile.congestion is None else profile.congestion.routing
    if as_json:
        content = profile.to_dict()
        if copy_routing:
            content["routing"] = None if routing is None else [path.tolist() for path in routing]
        print(json.dumps(content, indent=2, ensure_ascii=False))
    else:
        print(profile)
        if copy_routing:
            print()
            print(_routing_text(profile))
    if plot is not None:
        from resolvent.report.figures import save

        say_written(save(profile.plot(), plot))


@app.command("draw")
def draw_pattern(
    spec: Spec = None,
    *,
    mask: MaskFile = None,
    n: Length = 16,
    png: Annotated[Path | None, typer.Option(help="Write the mask to an image file instead of printing text.")] = None,
) -> None:
    """Draw which positions each token reads: a row is a token, a column a position."""
    p, n = _chosen(spec, mask, n)
    if png is None:
        print(p.draw(n))
    else:
        from resolvent.analysis.figures.pages import mask_figure
        from resolvent.report.figures import save

        say_written(save(mask_figure(p, n), png))


@app.command("compare")
def compare_patterns(
    specs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PATTERN",
            help="Patterns to compare.",
            show_default="the paper's nine structures",
            autocompletion=complete_pattern,
        ),
    ] = None,
    *,
    n: Length = 1024,
    as_json: AsJson = False,
    plot: Annotated[
        Path | None, typer.Option(help="Write a figure of growth and the cache–congestion trade-off.")
    ] = None,
    pages: Annotated[Path | None, typer.Option(help="Write a page of figures per pattern to this folder.")] = None,
    effort: HowHard = "search",
) -> None:
    """Compare patterns: cost per token, cache, hops and congestion (the theory half of the paper's Table 1)."""
    patterns = [pattern(spec) for spec in specs or PAPER_STRUCTURES]
    profiles = []
    with progress(f"comparing {len(patterns)} patterns on {n:,} tokens", len(patterns)) as advance:
        for p in patterns:
            profiles.append(analyze(p, n, effort=effort))
            advance()
    if as_json:
        print(json.dumps([profile.to_dict() for profile in profiles], indent=2, ensure_ascii=False))
    else:
        from resolvent.report import tables

        Console().print(tables.comparison(profiles))
    if plot is not None:
        from resolvent.report.figures import save

        say_written(save(Comparison(tuple(profiles)).plot(), plot))
    if pages is not None:
        from resolvent.report.figures import save

        with progress("drawing figures", len(profiles)) as advance:
            for profile in profiles:
                name = "".join(c if c.isalnum() or c in "+-" else "_" for c in str(profile.pattern))
                save(profile.plot(), pages / f"{name}.png")
                advance()
        say_written(pages)


def _chosen(spec: str | None, mask: Path | None, n: int) -> tuple[Pattern, int]:
    """The pattern that is asked for, by its spelling or in a file, and the number of tokens."""
    if (spec is None) == (mask is None):
        raise SettingError("expected a pattern, for example exponential+cache, or --mask FILE.npy: one of them.")
    if mask is None:
        return pattern(str(spec)), n
    try:  # mapped, so that a header that claims more than the file has takes no memory
        entries = np.load(mask, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError):
        raise SettingError(f"expected a boolean array of shape (n, n) in the format .npy, got {mask}.") from None
    p = explicit(entries)
    return p, min(n, p.limit or n)


def _routing_text(profile: Profile) -> str:
    if profile.congestion is None:
        return f"no routing: copying takes {2 * profile.n:,} positions, and {profile.pattern} has fewer."
    routing = profile.congestion.routing
    if routing is None:
        return f"no routing: {profile.congestion.upper_by}."
    if routing.n <= 64:
        return routing.draw()
    loads, hops = routing.loads(), len(routing.nodes) / routing.n - 1
    return (
        f"routing of {routing.n:,} paths: {hops:.2f} hops on average, load {loads.mean():.2f} on average and "
        f"{loads.max()} at most. Routings are drawn for n ≤ 64; --json lists the paths, --plot shows the loads."
    )

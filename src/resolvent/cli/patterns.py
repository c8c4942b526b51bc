"""Commands about patterns: list, analyze, draw, compare."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from resolvent.analysis.profile import Profile, analyze
from resolvent.cli.shared import AsJson, HeadDim, Heads, HowHard, Length, Rule, Spec, app, progress, say_written
from resolvent.patterns import FAMILIES, MODIFIERS, PAPER_STRUCTURES, pattern


@app.command("patterns")
def list_patterns(n: Length = 1024, as_json: AsJson = False) -> None:
    """List the pattern families, each with a small picture and its cost."""
    if as_json:
        print(json.dumps({"families": FAMILIES, "modifiers": MODIFIERS, "paper": PAPER_STRUCTURES}, indent=2))
        return
    from resolvent.report import tables

    Console().print(tables.families(n))


@app.command("analyze")
def analyze_pattern(
    spec: Spec,
    n: Length = 1024,
    as_json: AsJson = False,
    plot: Annotated[Path | None, typer.Option(help="Write a page of figures: mask, cache, hops, load, growth.")] = None,
    copy_routing: Annotated[
        bool, typer.Option("--copy-routing", help="Also give the routing that copies n tokens: drawn, or in the JSON.")
    ] = False,
    effort: HowHard = "search",
    heads: Heads = 12,
    head_dim: HeadDim = 64,
    rule: Rule = "softmax",
) -> None:
    """Everything that can be proved about one pattern at length n.

    Hops count the steps from an input to a later output. Congestion is the number of tokens that must share one state
    when n tokens are copied n places on; it comes as proven bounds.
    """
    with progress(f"analyzing {spec} on {n:,} tokens", 1):
        profile = analyze(spec, n, effort=effort, heads=heads, head_dim=head_dim, rule=rule)
    routing = profile.congestion.routing
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
        from resolvent.report import figures

        say_written(figures.save(figures.profile_figure(profile), plot))


@app.command("draw")
def draw_pattern(
    spec: Spec,
    n: Length = 16,
    png: Annotated[Path | None, typer.Option(help="Write the mask as a picture instead of text.")] = None,
) -> None:
    """Draw who reads whom: a row is a token, a column a position it may read."""
    chosen = pattern(spec)
    if png is None:
        print(chosen.draw(n))
    else:
        from resolvent.report import figures

        say_written(figures.save(figures.mask_figure(chosen, n), png))


@app.command("compare")
def compare_patterns(
    specs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PATTERN]...", help="Patterns to compare; the paper's nine structures if none is named."
        ),
    ] = None,
    n: Length = 1024,
    as_json: AsJson = False,
    plot: Annotated[Path | None, typer.Option(help="Write growth curves and the cache–congestion trade-off.")] = None,
    pages: Annotated[Path | None, typer.Option(help="Write a page of figures per pattern into this folder.")] = None,
    effort: HowHard = "search",
) -> None:
    """Compare patterns: cost per token, cache, hops and congestion (the theory half of the paper's Table 1)."""
    chosen = [pattern(spec) for spec in specs or PAPER_STRUCTURES]
    profiles = []
    with progress(f"comparing {len(chosen)} patterns on {n:,} tokens", len(chosen)) as advance:
        for p in chosen:
            profiles.append(analyze(p, n, effort=effort))
            advance()
    if as_json:
        print(json.dumps([profile.to_dict() for profile in profiles], indent=2, ensure_ascii=False))
    else:
        from resolvent.report import tables

        Console().print(tables.comparison(profiles))
    if plot is not None:
        from resolvent.report import figures

        say_written(figures.save(figures.comparison_figure(profiles), plot))
    if pages is not None:
        from resolvent.report import figures

        with progress("drawing figures", len(profiles)) as advance:
            for profile in profiles:
                name = "".join(c if c.isalnum() or c in "+-" else "_" for c in str(profile.pattern))
                figures.save(figures.profile_figure(profile), pages / f"{name}.png")
                advance()
        say_written(pages)


def _routing_text(profile: Profile) -> str:
    routing = profile.congestion.routing
    if routing is None:
        return f"no routing: {profile.congestion.upper_by}."
    if routing.n <= 64:
        return routing.draw()
    loads, hops = routing.loads(), len(routing.nodes) / routing.n - 1
    return (
        f"routing of {routing.n:,} paths: {hops:.2f} hops on average, load {loads.mean():.2f} on average and "
        f"{loads.max()} at most. It is drawn for n ≤ 64; --json lists the paths, --plot shows the loads."
    )

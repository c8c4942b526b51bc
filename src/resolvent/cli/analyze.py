"""The command about patterns: one described in full, several compared, drawings, and the list of families."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console

from resolvent.analysis.comparison import Comparison
from resolvent.analysis.congestion import Effort
from resolvent.analysis.profile import Profile, analyze
from resolvent.cli.shared import AsJson, HeadDim, Heads, app, complete_pattern, parse_length, progress, say_written
from resolvent.errors import SettingError
from resolvent.patterns import FAMILIES, MODIFIERS, PAPER_STRUCTURES, Pattern, explicit, pattern
from resolvent.rules import RULES

_N, _N_DRAWN = 1024, 16


@app.command("analyze")
def analyze_patterns(
    specs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PATTERN",
            help="For example exponential+cache, or attention/first-order.",
            show_default="the paper's nine structures",
            autocompletion=complete_pattern,
        ),
    ] = None,
    *,
    mask: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.npy", help="Instead of PATTERN: a boolean mask of shape (n, n); row i reads column j."
        ),
    ] = None,
    n: Annotated[
        int | None,
        typer.Option(
            "--n",
            "-n",
            parser=parse_length,
            metavar="N",
            help="Sequence length in tokens, such as 4096, 128k or 1M.",
            show_default=f"{_N}; {_N_DRAWN} with --draw",
        ),
    ] = None,
    families: Annotated[
        bool, typer.Option("--families", help="List the families of patterns, each with a drawing and its cost.")
    ] = False,
    draw: Annotated[
        bool, typer.Option("--draw", help="Draw which positions each token reads, as text or with --plot.")
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write a figure (.png, .svg or .pdf). One pattern: mask, cache, hops, load, growth; several: growth, "
            "and cache against congestion; with --draw: the mask.",
        ),
    ] = None,
    copy_routing: Annotated[
        bool, typer.Option("--copy-routing", help="Also print a routing that copies n tokens (drawing or JSON).")
    ] = False,
    effort: Annotated[
        Effort,
        typer.Option(
            help="How hard to look for routings of low congestion: quick (one pass), search (rip-up-and-reroute for "
            "moderate n), exact (an integer program for small n; needs SciPy)."
        ),
    ] = "search",
    heads: Heads = 12,
    head_dim: HeadDim = 64,
    rule: Annotated[str, typer.Option(help=f"How A and B are parameterized: {', '.join(RULES)}.")] = "softmax",
    as_json: AsJson = False,
) -> None:
    """Analyze patterns at length n: reads, cache, hops, congestion and cost.

    One pattern is described in full; several are compared in a table. Without a
    pattern it is the theory half of the paper's Table 1.

    Hops count the steps from an input to a later output. Congestion is the
    number of tokens that must share one state when n tokens are copied to the
    next n positions; its bounds are proven.
    """
    if plot is not None:
        from resolvent.report.figures import require_format

        require_format(plot)
    if families:
        _print_families(n or _N, as_json=as_json)
        return
    patterns = _chosen(specs, mask)
    if (draw or copy_routing) and len(patterns) > 1:
        raise SettingError(f"--{'draw' if draw else 'copy-routing'} takes one pattern, for example exponential+cache.")
    n = n or (_N_DRAWN if draw else _N)
    n = n if mask is None else min(n, patterns[0].limit or n)
    if draw:
        _draw(patterns[0], n, plot)
        return
    profiles = []
    with progress(f"analyzing {', '.join(map(str, patterns))} on {n:,} tokens", len(patterns)) as advance:
        for p in patterns:
            profiles.append(analyze(p, n, effort=effort, heads=heads, head_dim=head_dim, rule=rule))
            advance()
    if as_json:
        contents = [_content(profile, copy_routing=copy_routing) for profile in profiles]
        print(json.dumps(contents[0] if len(contents) == 1 else contents, indent=2, ensure_ascii=False))
    elif len(profiles) == 1:
        print(profiles[0])
        if copy_routing:
            print(f"\n{_routing_text(profiles[0])}")
    else:
        from resolvent.report import tables

        Console().print(tables.comparison(profiles))
    if plot is not None:
        from resolvent.report.figures import save

        drawn = profiles[0] if len(profiles) == 1 else Comparison(tuple(profiles))
        say_written(save(drawn.plot(), plot))


def _chosen(specs: list[str] | None, mask: Path | None) -> list[Pattern]:
    if mask is None:
        return [pattern(spec) for spec in specs or PAPER_STRUCTURES]
    if specs:
        raise SettingError("expected patterns or --mask FILE.npy, got both.")
    try:  # mapped, so that a header that claims more than the file has takes no memory
        entries = np.load(mask, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise SettingError(f"there is no file {mask}.") from None
    except (ValueError, EOFError):
        raise SettingError(f"expected a boolean array of shape (n, n) in the format .npy, got {mask}.") from None
    return [explicit(entries)]


def _print_families(n: int, *, as_json: bool) -> None:
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


def _draw(p: Pattern, n: int, file: Path | None) -> None:
    if file is None:
        print(p.draw(n))
        return
    from resolvent.analysis.figures.panels import mask_figure
    from resolvent.report.figures import save

    say_written(save(mask_figure(p, n), file))


def _content(profile: Profile, *, copy_routing: bool) -> dict[str, object]:
    content = profile.to_dict()
    if copy_routing:
        routing = None if profile.congestion is None else profile.congestion.routing
        content["routing"] = None if routing is None else [path.tolist() for path in routing]
    return content


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

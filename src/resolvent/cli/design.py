"""The command that takes a budget and gives patterns."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from resolvent.cli.shared import AsJson, HeadDim, Heads, Length, app, progress, say_written
from resolvent.errors import SettingError

_ORDER = "max_hops, congestion, mean_hops, reads, slots"
_HELP = """Find the patterns that make the most of a budget, with exact figures and proven bounds.

Give a budget on at least one figure. Costs: cache slots (or KiB, for a head shape) and reads per token (or \
multiply-adds). Expressivity: hops are the steps that information takes from a token to a later one; congestion is the \
number of tokens that must share one state when n tokens are copied to the next n positions. Fewer hops and less \
congestion take more cache: n ≤ C(slots + hops, slots), and slots × congestion ≥ n - 1.

The table has the best pattern of each kind, with lower bounds in brackets; heads may differ (mixes), and with \
--layers, layers, too. Below it: why each is listed, and what a better value of each figure would cost. The patterns \
can be passed to 'resolvent analyze', 'resolvent train --pattern' and rv.Mixer.

Examples:

resolvent design --n 128k --slots 64

resolvent design --n 64k --kib 512 --heads 16 --head-dim 128

resolvent design --n 1M --slots 256 --max-hops 3 --order congestion --order reads

resolvent design --n 4k --reads 24 --weight max_hops=2 --weight reads=1 --plot out/design.png
"""


@app.command("design", help=_HELP)
def design_patterns(
    *,
    n: Length = 1024,
    slots: Annotated[float | None, typer.Option(help="At most this many cache slots of a head, on average.")] = None,
    kib: Annotated[float | None, typer.Option(help="At most this much decode cache of all layers, in KiB.")] = None,
    reads: Annotated[float | None, typer.Option(help="At most this many positions read by a token in a head.")] = None,
    madds: Annotated[float | None, typer.Option(help="At most this many multiply-adds per token, all layers.")] = None,
    max_hops: Annotated[float | None, typer.Option(help="At most this many hops between two tokens.")] = None,
    mean_hops: Annotated[float | None, typer.Option(help="At most this many hops, on average over all pairs.")] = None,
    congestion: Annotated[float | None, typer.Option(help="At most this many tokens per state in a copy.")] = None,
    order: Annotated[
        list[str] | None,
        typer.Option(help=f"Figures in the order in which they count (repeatable).  \\[default: {_ORDER}]"),
    ] = None,
    weight: Annotated[
        list[str] | None,
        typer.Option(metavar="FIGURE=W", help="Instead of --order: penalty for doubling this figure (repeatable)."),
    ] = None,
    heads: Heads = 12,
    head_dim: HeadDim = 64,
    layers: Annotated[int, typer.Option(help="Number of layers.")] = 1,
    item_bytes: Annotated[int, typer.Option(help="Bytes per number.")] = 4,
    as_json: AsJson = False,
    plot: Annotated[Path | None, typer.Option(help="Write a figure: the frontier, the budget, the candidates.")] = None,
) -> None:
    from resolvent.designer import design

    weights = None if weight is None else dict(map(_weight, weight))
    with progress(f"searching patterns for {n:,} tokens", 1):
        result = design(
            n,
            slots=slots,
            kib=kib,
            reads=reads,
            madds=madds,
            max_hops=max_hops,
            mean_hops=mean_hops,
            congestion=congestion,
            order=order,
            weights=weights,
            heads=heads,
            head_dim=head_dim,
            layers=layers,
            item_bytes=item_bytes,
        )
    print(result.to_json() if as_json else result)
    if plot is not None:
        from resolvent.report.figures import save

        say_written(save(result.plot(), plot))


def _weight(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    try:
        return name.strip(), float(value)
    except ValueError:
        raise SettingError(f"expected --weight as FIGURE=W, such as reads=2, got '{text}'.") from None

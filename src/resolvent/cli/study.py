"""Commands that run a study: a table or figure of the paper."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from resolvent.cli.shared import AsJson, app, progress, say_written
from resolvent.cli.train import EVERY, Changes
from resolvent.patterns import PAPER_STRUCTURES

study = typer.Typer(
    help="Run a table or figure of the paper: what is missing is trained, the rest is read.", no_args_is_help=True
)
app.add_typer(study, name="study")

JOBS = os.cpu_count() or 1
Jobs = Annotated[int, typer.Option(help="Cells at once, at most one for each GPU; their numbers do not depend on it.")]
Seeds = Annotated[int | None, typer.Option(help="Runs of each cell, with seeds one after another.")]
Structures = Annotated[list[str] | None, typer.Option("--structures", help="Only these; repeat.")]


@study.command("table1")
def table1(
    preset: Annotated[
        str, typer.Option(help="smoke (minutes), small (an hour on two cores) or paper (for a GPU).")
    ] = "small",
    structures: Structures = None,
    tasks: Annotated[
        list[str] | None, typer.Option("--tasks", help="Only these: copy, recall, multihop; repeat.")
    ] = None,
    seeds: Seeds = None,
    jobs: Jobs = JOBS,
    out: Annotated[Path | None, typer.Option(help="Folder of runs and report; out/table1-PRESET if not given.")] = None,
    changes: Changes = None,
    as_json: AsJson = False,
) -> None:
    """Nine structures on three tasks: the paper's Table 1, with theory, accuracies, figures and graded claims.

    Finished cells are never run again: killed, the same command goes on; done, it only prints.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from resolvent.report import table1 as report
    from resolvent.report.results import write_records
    from resolvent.studies import grid
    from resolvent.studies.table1 import PRESETS, cells

    folder = out or Path("out") / f"table1-{preset}"
    grid_cells = cells(preset, folder, structures, tasks, seeds, changes or [])
    with Watch(len(grid_cells)) as watch:
        records = grid.run(grid_cells, jobs, watch.show)
    rows = report.rows(records)
    title = f"Table 1, {preset}: {PRESETS[preset].about}"
    (folder / "table1.md").write_text(f"# {title}\n\n{report.markdown(rows, records)}")
    write_records(records, folder / f"table1-{preset}.jsonl")
    report.write_csv(rows, folder / "table1.csv")
    (folder / "report.html").write_text(report.page(rows, records, title))
    if as_json:
        print(json.dumps({"records": records, "claims": dict(report.grades(rows))}, indent=1))
    else:
        console = Console()
        console.print(report.terminal(rows))
        console.print("accuracy in per cent, in brackets the paper's at its larger scale", style="dim", highlight=False)
        for claim, grade in report.grades(rows):
            if grade != "not run":
                console.print(f"  {grade:12}  {claim}", highlight=False)
    say_written(folder / "report.html")


@study.command("factors")
def factors(
    task: Annotated[str, typer.Argument(metavar="TASK", help="copy, recall or multihop.")],
    vary: Annotated[
        list[str],
        typer.Option(
            "--vary", metavar="KEY=V,V", help="A factor and its values: a key of --set, gate or first; repeat."
        ),
    ],
    structures: Structures = None,
    preset: Annotated[str, typer.Option(help="Settings that are changed: smoke, small or paper.")] = "small",
    seeds: Annotated[int, typer.Option(help="Runs of each cell.")] = 2,
    first_seed: Annotated[int, typer.Option(help="Seed of the first; not one that results are published on.")] = 100,
    jobs: Jobs = JOBS,
    out: Annotated[Path, typer.Option(help="Folder of the runs.")] = Path("out/factors"),
    changes: Changes = None,
    as_json: AsJson = False,
) -> None:
    """What makes a structure learn: change one setting at a time, everything else as in the preset.

    Such as: resolvent study factors recall --structures dense --vary first=none,local:2 --vary gate=half,mamba
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from resolvent.studies import factors as study_of
    from resolvent.studies import grid

    chosen = structures or list(PAPER_STRUCTURES)
    settings = study_of.cells(task, chosen, vary, out, preset=preset, seeds=range(first_seed, first_seed + seeds),
                              changes=changes or [])  # fmt: skip
    everything = [cell for each in settings.values() for cell in each]
    with Watch(len(everything)) as watch:
        grid.run(everything, jobs, watch.show)
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column(task)
    for structure in chosen:
        table.add_column(structure, justify="right")
    found = {
        setting: {s: [_accuracy(cell) for cell in own if cell.structure == s] for s in chosen}
        for setting, own in settings.items()
    }
    for setting, scores in found.items():
        table.add_row(setting, *(" / ".join(f"{100 * score:.1f}" for score in scores[s]) for s in chosen))
    if as_json:
        print(json.dumps(found, indent=2))
    else:
        Console().print(table)


def _accuracy(cell: Any) -> float:
    return float(cell.done()["evaluation"]["accuracy"])


@study.command("throughput")
def throughput(
    structures: Annotated[list[str] | None, typer.Argument(metavar="[PATTERN]...", help="The paper's if none.")] = None,
    batch: Annotated[int, typer.Option(help="Sequences per step.")] = 8,
    rounds: Annotated[int, typer.Option(help="Steps that are timed, of each way.")] = 5,
    threads: Annotated[int, typer.Option(help="Threads.")] = JOBS,
    as_json: AsJson = False,
) -> None:
    """Steps of training on copies of 128 symbols: the kernels against dense masked matrices, in the same model."""
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from resolvent.studies import throughput as speed

    chosen = structures or list(PAPER_STRUCTURES)
    with progress(f"timing {len(chosen)} structures", len(chosen)) as advance:
        found = [each.to_dict() for each in speed.throughput(chosen, batch, rounds, threads, advance)]
    if as_json:
        print(json.dumps(found, indent=2))
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("structure", "ms a step", "the paper's way", "times as fast", "at most", "making the batch"):
        table.add_column(name, justify="left" if name == "structure" else "right")
    for each in found:
        table.add_row(each["structure"], f"{1e3 * each['ours']:.0f}", f"{1e3 * each['paper']:.0f}",
                      f"{each['paper'] / each['ours']:.1f}", f"{each['paper'] / each['free']:.1f}",
                      f"{each['task_share']:.1%}")  # fmt: skip
    console = Console()
    console.print(table)
    console.print("at most: with mixing left out, the rest of the step as it is", style="dim", highlight=False)


class Watch:
    """A table of the cells at work, on a terminal; a line now and then elsewhere."""

    def __init__(self, total: int) -> None:
        self.total, self.shown, self.begin = total, time.monotonic(), time.monotonic()
        self.live = Live(console=Console(stderr=True), transient=True) if sys.stderr.isatty() else None

    def __enter__(self) -> Watch:
        if self.live is not None:
            self.live.start()
        return self

    def __exit__(self, *_: Any) -> None:
        if self.live is not None:
            self.live.stop()

    def show(self, standings: list[Any], finished: int) -> None:
        said = f"{finished} of {self.total} cells, {time.monotonic() - self.begin:.0f} s"
        rows = [
            (s.cell.name, f"{s.step:,}/{s.cell.config.train.steps:,}", "" if s.loss is None else f"{s.loss:.3f}",
             "" if s.found is None else f"{s.found:.3f}")
            for s in standings
        ]  # fmt: skip
        if self.live is not None:
            table = Table(box=None, title=said, title_justify="left")
            for name in ("cell", "step", "loss", "found"):
                table.add_column(name)
            for row in rows:
                table.add_row(*row)
            self.live.update(table)
        elif time.monotonic() - self.shown >= EVERY:
            self.shown = time.monotonic()
            print(said + "".join(f"; {' '.join(row)}" for row in rows), file=sys.stderr, flush=True)

"""Commands that run a study: a table or figure of the paper. One for each in the registry, and two more."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.console import Console
from rich.table import Table

from resolvent.cli.display import GridDisplay
from resolvent.cli.shared import AsJson, app, progress, say_written
from resolvent.cli.train import Changes
from resolvent.errors import SettingError
from resolvent.files import ReadOnlyError, require_writable, write_text
from resolvent.patterns import PAPER_STRUCTURES, pattern
from resolvent.studies import factors as one_factor
from resolvent.studies import grid, render, table1
from resolvent.studies.engines import engine_of
from resolvent.studies.grid import Cell
from resolvent.studies.page import page
from resolvent.studies.registry import STUDIES
from resolvent.studies.results import figure_name
from resolvent.studies.study import Option, Selection, Study, StudyPlan, StudyReport
from resolvent.train.record import Record, read_records, write_records

study = typer.Typer(
    help="Run a table or figure of the paper: missing runs are trained, finished ones are read.", no_args_is_help=True
)
app.add_typer(study, name="study")

JOBS = os.cpu_count() or 1
_RESUME = "If interrupted, rerun the same command to resume; if complete, it prints the results."
Jobs = Annotated[
    int | None,
    typer.Option(help="Cells to run at once, at most one per GPU.  \\[default: one per core, or all on a cluster]"),
]
On = Annotated[
    str,
    typer.Option(
        "--on", metavar="ENGINE", help="Where cells run: local, ray or slurm:partition=… (docs/distributed.md)."
    ),
]
Structures = Annotated[
    list[str] | None, typer.Option("--structures", help="Restrict to these structures (repeatable).")
]

# Options that studies share; those of `Study.options` are there for the studies that name them.
_CORPUS = Annotated[Path, typer.Option(help="Folder of a prepared text; see 'resolvent data'.")]
_QUICK = Annotated[bool, typer.Option("--quick", help="The same as --preset quick.")]
_RULES = Annotated[list[str] | None, typer.Option("--rules", help="Restrict to these rules (repeatable).")]
_TASKS = Annotated[
    list[str] | None, typer.Option("--tasks", help="Restrict to these tasks: copy, recall, multihop (repeatable).")
]
_TIMES = Annotated[
    list[int] | None, typer.Option(help="Multiples of the trained length (repeatable).  \\[default: 2, 4 and 8]")
]
_RECORDS = Annotated[
    list[Path] | None,
    typer.Option(help="Files of records: runs that they have are not repeated, and fits include them (repeatable)."),
]
_ROPES = Annotated[
    list[str] | None,
    typer.Option(
        "--ropes",
        metavar="ROPE",
        help="Rotary positions to train with: a base, none, near:within=… (repeatable).  \\[default: the preset's]",
    ),
]
_EVALUATED = Annotated[
    list[str] | None,
    typer.Option(
        "--evaluated-ropes",
        metavar="ROPE",
        help="Also measure models that were trained with a base with these rotary positions: another base, none, "
        "ntk:factor=8, capped:within=255 (repeatable).",
    ),
]
_TOKENS = Annotated[int | None, typer.Option(help="Held-out tokens to measure, the first ones.  \\[default: all]")]
_SEEDS = Annotated[
    int | None, typer.Option(help="Runs of each cell, with consecutive seeds.  \\[default: the preset's]")
]
_FIRST = Annotated[
    int | None, typer.Option(help="First of the consecutive seeds.  \\[default: the study's or preset's]")
]
_RATES = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Learning rates by structure, as 'resolvent tune' writes them.  \\[default: the preset's]"
    ),
]
_FINISHED = Annotated[bool, typer.Option("--finished", help="Train nothing: report the runs that are finished.")]
_OUT = Annotated[Path | None, typer.Option(help="Folder of runs and reports.  \\[default: in out/, by preset]")]
_SPECIAL: dict[Option, tuple[object, object]] = {  # annotation and default
    "corpus": (_CORPUS, Parameter.empty),
    "quick": (_QUICK, False),
    "rules": (_RULES, None),
    "first_seed": (_FIRST, None),
    "rates": (_RATES, None),
    "tasks": (_TASKS, None),
    "times": (_TIMES, None),
    "records": (_RECORDS, None),
    "ropes": (_ROPES, None),
    "evaluated_ropes": (_EVALUATED, None),
    "tokens": (_TOKENS, None),
}


def _command(each: Study) -> Callable[..., None]:
    """The command of a study, with the options it takes."""

    def command(
        *, jobs: int | None, on: str, as_json: bool, only_finished: bool, quick: bool = False, **options: Any
    ) -> None:
        if quick and options["preset"] not in (None, "quick"):
            raise SettingError(f"expected --quick or --preset, got --quick and --preset {options['preset']}.")
        options["preset"] = "quick" if quick else options["preset"]
        options["changes"] = options["changes"] or ()
        selection = Selection(**options)
        plan = each.plan(selection)
        grid.adopt(plan.cells, [record for path in selection.records or () for record in read_records(path)])
        records = _finished(plan) if only_finished else _run(plan.cells, jobs, on)
        if plan.measure is not None:
            with progress("measuring", plan.measurements) as advance:
                records = plan.measure(advance)
        _publish(each, plan, records, as_json=as_json)

    cast("Any", command).__signature__ = _signature(each)  # what typer reads
    return command


def _signature(each: Study) -> Signature:
    names = ", ".join(f"{name} ({about})" for name, about in each.presets)
    preset = Annotated[str | None, typer.Option(help=f"{names}.  \\[default: {each.presets[0][0]}]")]
    options: dict[str, tuple[object, object]] = {name: _SPECIAL[name] for name in each.options}
    options |= {"preset": (preset, None), "structures": (Structures, None), "seeds": (_SEEDS, None)}
    options |= {"jobs": (Jobs, None), "on": (On, "local"), "out": (_OUT, None), "changes": (Changes, None)}
    options |= {"only_finished": (_FINISHED, False), "as_json": (AsJson, False)}
    return Signature([
        Parameter(name, Parameter.KEYWORD_ONLY, annotation=annotation, default=default)
        for name, (annotation, default) in options.items()
    ])  # fmt: skip


for _each in STUDIES.values():
    study.command(_each.name, help=f"{_each.about}\n\n{_RESUME}")(_command(_each))


def _run(cells: Sequence[Cell], jobs: int | None, on: str) -> list[Record]:
    with GridDisplay(len(cells)) as display:
        return grid.run(cells, jobs, display.show, lambda: engine_of(on))


def _finished(plan: StudyPlan) -> list[Record]:
    records = [record for cell in plan.cells if (record := cell.record()) is not None]
    if not records:
        raise SettingError(f"no run of the study is finished in {plan.folder}: leave out --finished to train them.")
    return records


def _publish(each: Study, plan: StudyPlan, records: Sequence[Record], *, as_json: bool) -> None:
    """Print the table and the graded claims; write Markdown, records, CSV, figures and a page."""
    report = each.report(records)
    if as_json:
        claims = [
            {"paper": claim.statement, "compared": claim.comparison, "grade": claim.grade}
            | ({"setting": claim.setting} if claim.setting else {})
            for claim in report.claims.graded
        ]
        print(json.dumps({"records": [record.to_dict() for record in records], "claims": claims}, indent=1))
    else:
        console = Console()
        console.print(render.terminal(report.brief))
        for caption in report.captions:
            console.print(caption, style="dim", highlight=False)
        if report.claims.tested.graded:
            console.print(render.terminal_claims(report.claims), highlight=False)
            console.print(report.claims.rule, style="dim", highlight=False)
    try:
        require_writable(plan.folder)
    except ReadOnlyError as error:  # a finished study, whose results have been printed
        print(f"not written: {error}", file=sys.stderr)
        return
    _write(each, plan, report, records)
    say_written(plan.folder / each.page)


def _write(each: Study, plan: StudyPlan, report: StudyReport, records: Sequence[Record]) -> None:
    from resolvent.report.figures import save

    folder, title = plan.folder, f"{each.title[0].upper()}{each.title[1:]}, {plan.preset}: {plan.about}"
    write_text(folder / f"{each.name}.md", f"# {title}\n\n{render.markdown(report)}")
    write_text(folder / each.page, page(report, title))
    write_records(records, folder / f"{each.name}-{plan.preset}.jsonl")
    render.write_csv(report, folder / f"{each.name}.csv")
    for number, figure in enumerate(figure for figure in report.figures if figure.published):
        save(figure.draw(), folder / f"{figure_name(each.name, number)}.png")


@study.command("factors")
def factors(
    task: Annotated[str, typer.Argument(metavar="TASK", help="copy, recall or multihop.")],
    *,
    vary: Annotated[
        list[str],
        typer.Option("--vary", metavar="KEY=V,V", help="A key of --set, gate or first, and its values (repeatable)."),
    ],
    structures: Structures = None,
    preset: Annotated[str, typer.Option(help=f"Settings to change: {', '.join(table1.PRESETS)}.")] = "small",
    seeds: Annotated[int, typer.Option(help="Runs of each cell.")] = 2,
    first_seed: Annotated[int, typer.Option(help="First seed; not one that results are published on.")] = 100,
    jobs: Jobs = None,
    on: On = "local",
    out: Annotated[Path, typer.Option(help="Folder of the runs.")] = Path("out/factors"),
    changes: Changes = None,
    as_json: AsJson = False,
) -> None:
    """Find what makes a structure learn: change one setting at a time, everything else as in the preset.

    Example: resolvent study factors recall --structures dense --vary first=none,local:2 --vary gate=half,mamba
    """
    given = structures or list(PAPER_STRUCTURES)
    chosen = [str(pattern(structure)) for structure in given]
    settings = one_factor.cells(task, given, vary, out, preset=preset, seeds=range(first_seed, first_seed + seeds),
                                changes=changes or [])  # fmt: skip
    _run([cell for cells in settings.values() for cell in cells], jobs, on)
    scores = {
        setting: {s: [_score(cell) for cell in cells if cell.structure == s] for s in chosen}
        for setting, cells in settings.items()
    }
    if as_json:
        print(json.dumps(scores, indent=2))
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column(task)
    for structure in chosen:
        table.add_column(structure, justify="right")
    for setting, each in scores.items():
        table.add_row(setting, *(" / ".join(f"{100 * score:.1f}" for score in each[s]) for s in chosen))
    Console().print(table)


def _score(cell: Cell) -> float:
    record = cell.record()
    assert record is not None, cell.name  # the grid has just been run
    return record.evaluation.value


@study.command("throughput")
def throughput(
    structures: Annotated[
        list[str] | None,
        typer.Argument(metavar="PATTERN", help="Patterns to time.", show_default="the paper's nine structures"),
    ] = None,
    *,
    batch: Annotated[int, typer.Option(help="Sequences per step.")] = 8,
    rounds: Annotated[int, typer.Option(help="Timed steps of each implementation.")] = 5,
    threads: Annotated[int, typer.Option(help="Number of threads.")] = JOBS,
    as_json: AsJson = False,
) -> None:
    """Time training steps on copies of 128 symbols: the kernels against dense masked matrices, in the same model."""
    from resolvent.studies.throughput import throughput as measure

    chosen = structures or list(PAPER_STRUCTURES)
    with progress(f"timing {len(chosen)} structures", len(chosen)) as advance:
        results = measure(chosen, batch, rounds, threads, advance)
    if as_json:
        print(json.dumps([each.to_dict() for each in results], indent=2))
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("structure", "ms per step", "paper's, ms", "speedup", "upper bound", "making the batch"):
        table.add_column(name, justify="left" if name == "structure" else "right")
    for each in results:
        table.add_row(each.structure, f"{1e3 * each.ours:.0f}", f"{1e3 * each.paper:.0f}",
                      f"{each.paper / each.ours:.1f}", f"{each.paper / each.free:.1f}",
                      f"{each.task_share:.1%}")  # fmt: skip
    console = Console()
    console.print(table)
    console.print("upper bound: speedup if mixing took no time", style="dim", highlight=False)

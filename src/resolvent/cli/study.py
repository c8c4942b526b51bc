"""Commands that run a study, a table or figure of the paper: one for each in the registry."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.console import Console

from resolvent.cli.display import GridDisplay
from resolvent.cli.shared import AsJson, app, progress, say_written
from resolvent.cli.train import Changes
from resolvent.errors import SettingError
from resolvent.files import ReadOnlyError, require_writable, write_text
from resolvent.studies import grid, render
from resolvent.studies.engines import engine_of
from resolvent.studies.grid import Cell
from resolvent.studies.page import page
from resolvent.studies.registry import STUDIES
from resolvent.studies.study import Option, Selection, Study, StudyPlan, StudyReport, figure_name
from resolvent.train.record import Record, read_records, write_records

study = typer.Typer(
    help="Run the experiments of a table or figure, or tune learning rates for them; finished runs are not repeated.",
    no_args_is_help=True,
)
app.add_typer(study, name="study")

_RESUME = "If interrupted, rerun the same command to resume; if complete, it prints the results."
Jobs = Annotated[
    int | None,
    typer.Option(help="Runs trained in parallel, at most one per GPU.  \\[default: one per core, all on a cluster]"),
]
On = Annotated[
    str,
    typer.Option(
        "--on", metavar="ENGINE", help="Where runs train: local, ray or slurm:partition=… (docs/distributed.md)."
    ),
]
Structures = Annotated[
    list[str] | None, typer.Option("--structures", help="Restrict to these structures (repeatable).")
]


def _option(kind: object, text: str, metavar: str | None = None, default: object = None) -> tuple[object, object]:
    """The annotation of a parameter whose option has the same name, and its default."""
    return Annotated[kind, typer.Option(help=text, metavar=metavar)], default


_SPECIAL: dict[Option, tuple[object, object]] = {  # there for the studies that name them
    "corpus": _option(Path, "Folder of a prepared text; see 'resolvent data'.", default=Parameter.empty),
    "rules": _option(list[str] | None, "Restrict to these rules (repeatable)."),
    "first_seed": _option(int | None, "First of the consecutive seeds.  \\[default: the study's or preset's]"),
    "rates": _option(
        Path | None,
        "Learning rates by structure, as 'resolvent study tune' writes them.  \\[default: the preset's]",
        "FILE",
    ),
    "tasks": _option(list[str] | None, "Restrict to these tasks: copy, recall, multihop (repeatable)."),
    "times": _option(list[int] | None, "Multiples of the trained length (repeatable).  \\[default: 2, 4 and 8]"),
    "records": _option(list[Path] | None, "Reuse finished runs of these record files, in fits too (repeatable)."),
    "ropes": _option(
        list[str] | None,
        "Rotary positions to train with: a base, none, near:within=… (repeatable).  \\[default: the preset's]",
        "ROPE",
    ),
    "evaluated_ropes": _option(
        list[str] | None,
        "Also measure models that were trained with a base with these rotary positions: another base, none, "
        "ntk:factor=8, capped:within=255 (repeatable).",
        "ROPE",
    ),
    "tokens": _option(int | None, "Measure only the first N held-out tokens.  \\[default: all]"),
}
_SEEDS = _option(int | None, "Runs of each cell, with consecutive seeds.  \\[default: the preset's]")
_OUT = _option(Path | None, "Folder of runs and reports.  \\[default: in out/, by preset]")
_FINISHED = Annotated[bool, typer.Option("--finished", help="Train nothing: report the runs that are finished.")]


def _command(each: Study) -> Callable[..., None]:
    def command(*, jobs: int | None, on: str, as_json: bool, only_finished: bool, **options: Any) -> None:
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
    preset = _option(str | None, f"{names}.  \\[default: {each.presets[0][0]}]")
    options: dict[str, tuple[object, object]] = {name: _SPECIAL[name] for name in each.options}
    options |= {"preset": preset, "structures": (Structures, None), "seeds": _SEEDS}
    options |= {"jobs": (Jobs, None), "on": (On, "local"), "out": _OUT, "changes": (Changes, None)}
    options |= {"only_finished": (_FINISHED, False), "as_json": (AsJson, False)}
    parameters = [
        Parameter(name, Parameter.KEYWORD_ONLY, annotation=annotation, default=default)
        for name, (annotation, default) in options.items()
    ]
    return Signature(parameters)


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
    """Print the table and the graded claims; write Markdown, records, figures and a page."""
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
    for number, figure in enumerate(figure for figure in report.figures if figure.published):
        save(figure.draw(), folder / f"{figure_name(each.name, number)}.png")

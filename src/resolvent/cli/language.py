"""Commands that run a study on text: what is missing is trained, then drawn and graded from the records."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from resolvent.cli.shared import AsJson, progress, say_written
from resolvent.cli.study import JOBS, Jobs, Seeds, Structures, Watch, study
from resolvent.cli.train import Changes

Corpus = Annotated[Path, typer.Option(help="Folder of a prepared text; see 'resolvent data'.")]
Size = Annotated[
    str | None,
    typer.Option(
        "--preset", help="quick (minutes), laptop (if not given), or gpt2-125m, gpt2-355m, gpt2-775m (for GPUs)."
    ),
]
Quick = Annotated[bool, typer.Option("--quick", help="The same as --preset quick.")]
Rules = Annotated[list[str] | None, typer.Option("--rules", help="These ways to make coefficients instead; repeat.")]
Out = Annotated[
    Path | None,
    typer.Option(help="Folder of runs, which studies on text share, and reports; out/language-PRESET-CORPUS if none."),
]


@study.command("pareto")
def pareto(
    corpus: Corpus, preset: Size = None, quick: Quick = False, structures: Structures = None, seeds: Seeds = None,
    jobs: Jobs = JOBS, out: Out = None, changes: Changes = None, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Nine structures on text: the paper's perplexity against complexity, with the Pareto frontier and graded claims.

    Finished runs are never run again: killed, the same command goes on; done, it only draws.
    """
    _run("pareto", corpus, _preset(preset, quick), out, jobs, as_json,
         structures=structures, seeds=seeds, changes=changes or ())  # fmt: skip


@study.command("mamba")
def mamba(
    corpus: Corpus, preset: Size = None, quick: Quick = False, structures: Structures = None, rules: Rules = None,
    seeds: Seeds = None, jobs: Jobs = JOBS, out: Out = None, changes: Changes = None, as_json: AsJson = False,
) -> None:  # fmt: skip
    """First order with the paper's coefficients and with Mamba's rule: the paper's ablation."""
    _run("mamba", corpus, _preset(preset, quick), out, jobs, as_json,
         structures=structures, rules=rules, seeds=seeds, changes=changes or ())  # fmt: skip


@study.command("sharing")
def sharing(
    corpus: Corpus, preset: Size = None, quick: Quick = False, structures: Structures = None, rules: Rules = None,
    seeds: Seeds = None, jobs: Jobs = JOBS, out: Out = None, changes: Changes = None, as_json: AsJson = False,
) -> None:  # fmt: skip
    """A = BD + D' against an A of its own: what half the work and half the cache cost in perplexity."""
    _run("sharing", corpus, _preset(preset, quick), out, jobs, as_json,
         structures=structures, rules=rules, seeds=seeds, changes=changes or ())  # fmt: skip


@study.command("normalisation")
def normalisation(
    corpus: Corpus, preset: Size = None, quick: Quick = False, structures: Structures = None, rules: Rules = None,
    seeds: Seeds = None, jobs: Jobs = JOBS, out: Out = None, changes: Changes = None, as_json: AsJson = False,
) -> None:  # fmt: skip
    """A gate for each token, a constant one, and one softmax over the whole of (I - B)^-1 A."""
    _run("normalisation", corpus, _preset(preset, quick), out, jobs, as_json,
         structures=structures, rules=rules, seeds=seeds, changes=changes or ())  # fmt: skip


@study.command("length")
def length(
    corpus: Corpus, preset: Size = None, quick: Quick = False, structures: Structures = None, rules: Rules = None,
    times: Annotated[
        list[int] | None, typer.Option(help="Multiples of the trained length; 2, 4 and 8 if none; repeat.")
    ] = None,
    seeds: Seeds = None, jobs: Jobs = JOBS, out: Out = None, changes: Changes = None, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Models in longer contexts than they were trained on: perplexity by length, and by place."""
    _run("length", corpus, _preset(preset, quick), out, jobs, as_json, times,
         structures=structures, rules=rules, seeds=seeds, changes=changes or ())  # fmt: skip


def _preset(name: str | None, quick: bool) -> str:
    if quick and name not in (None, "quick"):
        raise ValueError(f"expected --quick or --preset, got --quick and --preset {name}.")
    return "quick" if quick else name or "laptop"


def _run(
    name: str, corpus: Path, preset: str, out: Path | None, jobs: int, as_json: bool,
    times: Sequence[int] | None = None, **chosen: Any,
) -> None:  # fmt: skip
    """Train what is missing; then table, Markdown, CSV, figure and page from the records."""
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from resolvent.report import language as report
    from resolvent.report.figures import save
    from resolvent.report.results import write_records
    from resolvent.report.variants import variants
    from resolvent.studies import grid, lengths
    from resolvent.studies.language import PRESETS, cells

    folder = out or Path("out") / f"language-{preset}-{corpus.resolve().name}"
    grid_cells = cells(name, preset, str(corpus), folder, **chosen)
    wanted = tuple(times or lengths.TIMES)
    if name == "length":
        lengths.contexts(grid_cells[0], wanted)  # or a refusal, before anything is trained
    with Watch(len(grid_cells)) as watch:
        records = grid.run(grid_cells, jobs, watch.show)
    if name == "length":
        with progress("measuring", len(grid_cells) * len({1, *wanted})) as advance:
            records = [lengths.measured(cell, wanted, advance) for cell in grid_cells]
    view, found = report.VIEWS[name], variants(records)
    title = f"{view.title}, {preset}: {PRESETS[preset].about}"
    title = title[0].upper() + title[1:]
    (folder / f"{name}.md").write_text(f"# {title}\n\n{report.markdown(view, records)}")
    (folder / f"{name}.html").write_text(report.page(view, records, title))
    write_records(records, folder / f"{name}-{preset}.jsonl")
    report.write_csv(found, folder / f"{name}.csv")
    save(view.figure(found), folder / f"{name}.png")
    if as_json:
        graded = [dict(zip(("paper", "compared", "grade"), row, strict=True)) for row in report.grades(view, found)]
        print(json.dumps({"records": records, "claims": graded}, indent=1))
    else:
        console = Console()
        console.print(report.terminal(view, found))
        for note in report.notes(view, found):
            console.print(note, style="dim", highlight=False)
        console.print(report.graded(view, found), highlight=False)
        console.print(report.rule(view, found), style="dim", highlight=False)
    say_written(folder / f"{name}.html")

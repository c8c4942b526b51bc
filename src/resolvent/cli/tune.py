"""The command that finds learning rates."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from resolvent.cli.display import GridDisplay
from resolvent.cli.settings import RunOptions
from resolvent.cli.shared import AsJson, say, say_written
from resolvent.cli.study import Jobs, On, Structures, study
from resolvent.cli.train import Changes
from resolvent.errors import SettingError
from resolvent.patterns import PAPER_STRUCTURES
from resolvent.studies import grid
from resolvent.studies.engines import engine_of
from resolvent.studies.grid import Cell
from resolvent.studies.tune import Sweep, Tuning, tune
from resolvent.train.config_file import ConfigFile, write_rates

if TYPE_CHECKING:
    from resolvent.train import RunConfig

FILE = "rates.toml"


@study.command("tune")
def tune_rates(
    task: Annotated[str, typer.Argument(metavar="TASK", help="copy, recall, multihop, or text with --corpus.")],
    *,
    structures: Structures = None,
    corpus: Annotated[Path | None, typer.Option(help="Folder of a prepared text; see 'resolvent data'.")] = None,
    preset: Annotated[str | None, typer.Option(help="Base settings; same names as 'resolvent train --preset'.")] = None,
    rates: Annotated[
        str | None,
        typer.Option(
            metavar="RATE,RATE", help="Learning rates to try.  \\[default: the preset's × 1/4, 1/2, 1, 2 and 4]"
        ),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="Steps of the shortest runs.  \\[default: a fiftieth of the preset's]")
    ] = None,
    seeds: Annotated[int, typer.Option(help="Runs of each rate, with consecutive seeds.")] = 1,
    first_seed: Annotated[int, typer.Option(help="First seed; not one that results are published on.")] = 100,
    jobs: Jobs = None,
    on: On = "local",
    out: Annotated[
        Path | None, typer.Option(help="Folder of runs and rates.  \\[default: out/tune-TASK-PRESET]")
    ] = None,
    changes: Changes = None,
    as_json: AsJson = False,
) -> None:
    """Find the learning rate of each structure by successive halving, and write them to a file.

    All rates are tried in short runs, the better half of them in runs of twice
    the steps, and so on until one is left. The file rates.toml has the best;
    'resolvent train --config FILE' and 'resolvent study … --rates FILE' take it.
    If interrupted, rerun the same command to resume.

    Example: resolvent study tune text --corpus out/text/python-bpe-1024 --structures dense --rates 1e-3,2e-3,4e-3
    """
    if seeds < 1:
        raise SettingError(f"expected at least one seed, got {seeds}.")
    none = ConfigFile(Path(), None, {})

    def options(structure: str | None, seed: int) -> RunOptions:
        patterns = () if structure is None else (structure,)
        return RunOptions(task, patterns, corpus=corpus, preset=preset, seed=seed, changes=changes or ())

    def configure(structure: str, seed: int) -> RunConfig:
        return options(structure, seed).config(none)

    name = options(None, first_seed).preset_name(none)
    chosen = structures or list(PAPER_STRUCTURES)
    usual = configure(chosen[0], first_seed)
    sweep = Sweep.around(usual, _numbers(rates), steps, range(first_seed, first_seed + seeds))
    folder = out or Path("out") / f"tune-{task}-{name}"

    def run(cells: Sequence[Cell]) -> None:
        with GridDisplay(len(cells)) as display:
            grid.run(cells, jobs, display.show, lambda: engine_of(on))

    tuning = tune(chosen, configure, sweep, folder, run)
    write_rates(folder / FILE, tuning.winners, name, _sections(usual, changes or ()), _comments(tuning))
    if as_json:
        print(json.dumps(_as_dict(tuning), indent=2))
    else:
        Console().print(_table(tuning, usual.task.measure))
        print(_cost(tuning))
    if tuning.at_the_edge:
        say(f"at the edge of what was tried: {', '.join(tuning.at_the_edge)}. Widen --rates to be sure.")
    say_written(folder / FILE)


def _numbers(text: str | None) -> list[float] | None:
    if text is None:
        return None
    try:
        return [float(each) for each in text.split(",")]
    except ValueError:
        raise SettingError(f"expected --rates as numbers, such as 1e-3,2e-3,4e-3, got '{text}'.") from None


def _sections(config: RunConfig, changes: Sequence[str]) -> dict[str, dict[str, object]]:
    """What tells the runs from the preset: the task, and settings that were changed."""
    values = config.to_dict()
    given = {"name": config.task.name}
    sections: dict[str, dict[str, object]] = {
        "task": given | {k: values["task"][k] for k in ("corpus",) if k in values["task"]}
    }
    for change in changes:
        section, _, key = change.partition("=")[0].strip().partition(".")
        sections.setdefault(section, {})[key] = values[section][key]
    return sections


def _comments(tuning: Tuning) -> list[str]:
    tried = ", ".join(f"{rate:g}" for rate in tuning.sweep.rates)
    rungs = ", ".join(f"{count} for {steps:,} steps" for count, steps in tuning.sweep.rungs)
    seeds = ", ".join(map(str, tuning.sweep.seeds))
    return [
        f"Learning rates by structure: the best of {tried} by successive halving ({rungs}; seeds {seeds}).",
        _cost(tuning),
        "resolvent train --config FILE --pattern PATTERN takes them, and resolvent study NAME --rates FILE.",
    ]


def _cost(tuning: Tuning) -> str:
    tokens, seconds = tuning.cost
    return f"Cost: {len(tuning.trials):,} trials, {tokens / 1e6:,.1f}M tokens, {seconds / 60:,.1f} minutes of one core."


def _table(tuning: Tuning, measure: str) -> Table:
    """What each rate reached, after how many steps: those of the last rung are the longest."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column(f"{measure} (steps)")
    for rate in tuning.sweep.rates:
        table.add_column(f"{rate:g}", justify="right")
    table.add_column("best", justify="right")
    for structure, best in tuning.winners.items():
        trials = [tuning.of(structure, rate) for rate in tuning.sweep.rates]
        shown = ["diverged" if trial.value is None else f"{trial.value:.3f} ({trial.steps})" for trial in trials]
        table.add_row(structure, *shown, f"{best:g}")
    return table


def _as_dict(tuning: Tuning) -> dict[str, object]:
    tokens, seconds = tuning.cost
    trials = [
        {"structure": trial.structure, "rate": trial.rate, "steps": trial.steps, "value": trial.value}
        for trial in tuning.trials
    ]
    return {
        "rates": tuning.winners,
        "trials": trials,
        "tokens": tokens,
        "core_seconds": seconds,
        "at_the_edge": tuning.at_the_edge,
    }

"""Learning rates by successive halving: who goes on, what is run again, what is written, and what is refused."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from resolvent.cli import app
from resolvent.cli.settings import RunOptions
from resolvent.model import ModelConfig
from resolvent.studies.grid import Cell, CellError
from resolvent.studies.language.study import PARETO
from resolvent.studies.tune import Sweep, Tuning, tune
from resolvent.tasks import Copy
from resolvent.train import RunConfig, TrainConfig
from resolvent.train.config_file import ConfigFile, write_rates
from resolvent.train.evaluations import AccuracyEvaluation
from tests.small_runs import record_of

RATES = (0.001, 0.002, 0.004, 0.008, 0.016)


def configure(structure: str, seed: int) -> RunConfig:
    model = ModelConfig(vocab_size=20, layers=1, dim=8, heads=1, pattern=structure)
    return RunConfig(model, Copy(vocab_size=20, length=4), TrainConfig(steps=1000, warmup=100, seed=seed))


def pretended(accuracy: dict[float, float], ran: list[str]) -> Any:
    """A grid in which the accuracy of a run depends on its rate alone, or in which it diverges, at NaN."""

    def run(cells: Sequence[Cell]) -> None:
        failed = False
        for cell in (each for each in cells if each.record() is None):
            rate = cell.config.train.learning_rate
            ran.append(f"{cell.structure} for {cell.config.train.steps}")
            cell.folder.mkdir(parents=True)
            if math.isnan(accuracy[rate]):
                (cell.folder / "log.txt").write_text("resolvent.train.loop.DivergedError: loss nan\n")
                failed = True
            else:
                evaluation = AccuracyEvaluation(accuracy[rate], 0.0, 9)
                steps = cell.config.train.steps
                record_of(config=cell.config, evaluation=evaluation, steps=steps).write(cell.folder / "run.json")
        if failed:
            raise CellError("failed")

    return run


def tuned(out: Path, accuracy: dict[float, float], ran: list[str], structures: Sequence[str] = ("dense",)) -> Tuning:
    return tune(structures, configure, Sweep(RATES, 10, (100,)), out, pretended(accuracy, ran))


def test_the_better_half_goes_on_for_twice_the_steps(tmp_path: Path) -> None:
    ran: list[str] = []
    accuracy = dict(zip(RATES, (0.1, 0.4, 0.3, 0.9, 0.2), strict=True))
    found = tuned(tmp_path, accuracy, ran)
    assert ran == [
        *(f"dense · {rate:g} for 10" for rate in RATES),
        *(f"dense · {rate:g} for 20" for rate in (0.008, 0.002, 0.004)),
        *(f"dense · {rate:g} for 40" for rate in (0.008, 0.002)),
    ]
    assert found.winners == {"dense": 0.008}
    assert found.at_the_edge == []
    assert found.of("dense", 0.004).steps == 20
    assert found.cost == (10 * 1000, 10 * 36.0)
    assert [count for count, _ in Sweep(RATES[:4], 10, (1,)).rungs] == [4, 2]
    assert Sweep(RATES[:2], 7, (1,)).rungs == [(2, 7)]


def test_nothing_is_run_twice(tmp_path: Path) -> None:
    ran: list[str] = []
    accuracy = dict(zip(RATES, (0.1, math.nan, 0.3, math.nan, 0.2), strict=True))
    first = tuned(tmp_path, accuracy, ran)
    assert first.winners == {"dense": 0.004}
    assert first.of("dense", 0.008).value is None
    again: list[str] = []
    assert tuned(tmp_path, accuracy, again).winners == first.winners
    assert (len(ran), again) == (10, [])


def test_every_structure_has_its_own(tmp_path: Path) -> None:
    found = tuned(tmp_path, dict.fromkeys(RATES, 0.5), [], ("dense", "order:8", "dense"))
    assert found.winners == {"dense": 0.001, "order:8": 0.001}  # the smallest of those alike
    assert found.at_the_edge == ["dense", "order:8"]


def test_failures(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"dense diverged with every learning rate of 0.001, .*expected smaller --rates"
    ):
        _ = tuned(tmp_path / "a", dict.fromkeys(RATES, math.nan), []).winners

    def broken(cells: Sequence[Cell]) -> None:
        for cell in cells:
            cell.folder.mkdir(parents=True)
            (cell.folder / "log.txt").write_text("OSError: the disk is full\n")
        raise CellError("the disk is full")

    with pytest.raises(CellError, match="the disk is full"):
        tune(["dense"], configure, Sweep(RATES, 10, (100,)), tmp_path / "b", broken)
    assert not list((tmp_path / "b").rglob("diverged.txt"))


def test_runs_are_the_presets_in_short(tmp_path: Path) -> None:
    found = tuned(tmp_path, dict.fromkeys(RATES, 0.5), [])
    settings = found.trials[0].cells[0].config.train
    assert (settings.steps, settings.warmup, settings.eval_every) == (10, 2, 10)
    assert Sweep.around(configure("dense", 0), None, None, [3]) == Sweep((5e-4, 1e-3, 2e-3, 4e-3, 8e-3), 20, (3,))


@pytest.mark.parametrize(("sweep", "message"), [
    ({"rates": (0.1,)}, "expected two learning rates or more, each once, got 0.1"),
    ({"rates": (0.1, -1.0)}, "expected learning rates > 0, got 0.1, -1"),
    ({"steps": 0}, "expected at least one step and one seed, got 0 and 1"),
])  # fmt: skip
def test_bad_sweeps(sweep: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Sweep(**{"rates": (0.1, 0.2), "steps": 5, "seeds": (0,)} | sweep)


# The file


def test_rates_round_trip(tmp_path: Path) -> None:
    path, rates = tmp_path / "rates.toml", {"dense": 0.004, "local:8/exponential+cache": 1e-3}
    write_rates(path, rates, "smoke", {"task": {"name": "copy"}, "train": {"steps": 30}}, ["how", "at what cost"])
    assert path.read_text().startswith('# how\n# at what cost\npreset = "smoke"\n')
    file = ConfigFile.read(path)
    assert (file.preset, file.task, file.rates) == ("smoke", "copy", rates)
    for structure, rate in rates.items():
        config = RunOptions(None, [structure]).config(file)
        assert (config.train.learning_rate, config.train.steps) == (rate, 30)
    given = RunOptions(None, ["dense"], changes=["train.learning_rate=0.5"]).config(file)
    assert given.train.learning_rate == 0.5  # options stand over the file
    with pytest.raises(ValueError, match="has no learning rate for order:8: expected dense, local:8/exponential"):
        RunOptions(None, ["order:8"]).config(file)
    path.write_text('[rates]\ndense = "fast"')
    with pytest.raises(ValueError, match="expected the learning rate of dense to be a number > 0, got 'fast'"):
        ConfigFile.read(path)
    path.write_text("[rates]\ndenes = 0.1")
    with pytest.raises(ValueError, match=r"\[rates\]: .*Did you mean 'dense'"):
        ConfigFile.read(path)


def test_a_study_takes_them(corpus: str, tmp_path: Path) -> None:
    path = tmp_path / "rates.toml"
    write_rates(path, {"dense": 0.0041, "first-order": 0.0012}, "quick", {}, [])
    cells = PARETO.cells("quick", corpus, tmp_path, structures=["first-order", "dense"], rates=path)
    assert [cell.config.train.learning_rate for cell in cells] == [0.0012, 0.0041]
    usual = PARETO.cells("quick", corpus, tmp_path, structures=["dense"])
    assert usual[0].config.differences(cells[1].config) == "train.learning_rate was 0.0041, is now 0.003"
    with pytest.raises(ValueError, match="has learning rates for the preset quick: expected those for laptop"):
        PARETO.cells("laptop", corpus, tmp_path, structures=["dense"], rates=path)
    path.write_text("[train]\nsteps = 3\n")
    with pytest.raises(ValueError, match="has no learning rates: expected a file that 'resolvent study tune' wrote"):
        PARETO.cells("quick", corpus, tmp_path, structures=["dense"], rates=path)


# The command


def call(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["study", "tune", *arguments])


@pytest.mark.usefixtures("cells_run_here")
def test_the_command_runs_resumes_and_writes(corpus: str, tmp_path: Path) -> None:
    """On text, with a rate that diverges."""
    changes = ("train.batch=2", "model.dim=8", "model.heads=1", "model.layers=1", "task.context=16", "train.patience=1")
    settings = [word for change in changes for word in ("--set", change)]
    arguments = ("text", "--corpus", corpus, "--structures", "first-order", "--rates", "0.01,1e-4,1e30", "--steps", "3",
                 "--out", str(tmp_path), *settings, "--jobs", "2")  # fmt: skip
    done = call(*arguments)
    assert done.exit_code == 0, done.output
    assert "diverged" in done.stdout
    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("*")}
    again = json.loads(call(*arguments, "--json").stdout)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("*")} == stamps
    assert again["rates"] == {"first-order": 0.01}
    file = ConfigFile.read(tmp_path / "rates.toml")
    config = RunOptions(None, ["first-order"]).config(file)
    assert (config.train.learning_rate, config.model.dim, config.task.longest) == (0.01, 8, 16)


def test_refusals(tmp_path: Path) -> None:
    for arguments, message in (
        (("copy", "--rates", "fast"), "expected --rates as numbers, such as 1e-3,2e-3,4e-3, got 'fast'"),
        (("copy", "--seeds", "0"), "expected at least one seed, got 0"),
        (("text",), "expected --corpus"),
    ):
        assert message in str(call(*arguments, "--out", str(tmp_path)).exception)
    assert not list(tmp_path.iterdir())

"""Runs that are stopped, extended and started from other weights: nothing is lost, and records say so."""

import dataclasses
from pathlib import Path

import pytest
import torch

from resolvent.errors import SettingError
from resolvent.model import LanguageModel, ModelConfig
from resolvent.train import Control, Progress, RunConfig, StoppedError, train
from resolvent.train.model_source import open_model
from resolvent.train.record import Record
from tests.train.test_train import MODEL, TASK, config, essence, losses


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return LanguageModel.load(folder / "model").state_dict()


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def stop_after(*steps: int) -> tuple[Control, list[int]]:
    """A control that stops after these steps, one after another, and the list of steps taken."""
    taken: list[int] = []
    return Control(stop=lambda: taken[-1] in steps, extend=True, keep=True), taken


@pytest.mark.parametrize("parallel", ["replicate", "shard"])
def test_a_stopped_run_resumes_from_the_very_step_to_the_bit(tmp_path: Path, parallel: str) -> None:
    settings = config(parallel=parallel)
    complete = train(settings, tmp_path / "complete")
    control, taken = stop_after(1, 7, 22, 24)
    for last in (1, 7, 22, 24):  # also the last: what is left is the final evaluation
        with pytest.raises(StoppedError, match=f"stopped after step {last} of 24"):
            train(settings, tmp_path / "cut", lambda p: taken.append(p.step), control)
    assert essence(train(settings, tmp_path / "cut", control=control)) == essence(complete)
    assert taken == list(range(1, 25))  # no step twice
    assert losses(tmp_path / "cut") == losses(tmp_path / "complete")
    assert same(weights(tmp_path / "cut"), weights(tmp_path / "complete"))


def test_a_checkpoint_is_written_when_the_last_is_old(tmp_path: Path) -> None:
    class KilledError(Exception):
        pass

    def kill(p: Progress) -> None:
        if p.step == 4:
            raise KilledError

    with pytest.raises(KilledError):  # long before step 5, where the first is due
        train(config(), tmp_path, kill, Control(save_seconds=0.0))
    assert (tmp_path / "checkpoint.safetensors").exists()
    with pytest.raises(KilledError):
        train(config(), tmp_path / "other", kill, Control(save_seconds=1e9))
    assert not (tmp_path / "other" / "checkpoint.safetensors").exists()


def test_a_finished_run_is_extended(tmp_path: Path) -> None:
    """With the moments of its optimizer; and stopped on the way, to the same bits."""
    control, taken = stop_after(27)
    first = train(config(), tmp_path / "a", control=Control(keep=True))
    train(config(), tmp_path / "b", control=Control(keep=True))
    with pytest.raises(SettingError, match=r"train.steps was 24, is now 30"):
        train(config(steps=30), tmp_path / "a")
    extended = train(config(steps=30), tmp_path / "a", control=Control(extend=True, keep=True))
    with pytest.raises(StoppedError, match="stopped after step 27 of 30"):
        train(config(steps=30), tmp_path / "b", lambda p: taken.append(p.step), control)
    assert taken == [25, 26, 27]
    assert train(config(), tmp_path / "b", control=control) == Record.read(tmp_path / "b" / "run.json")  # still 24
    again = train(config(steps=30), tmp_path / "b", control=Control(extend=True, keep=True))
    assert essence(again) == essence(extended)
    assert same(weights(tmp_path / "a"), weights(tmp_path / "b"))
    assert (first.extended_at, extended.extended_at, extended.steps) == ((), (24,), 30)
    assert Record.read(tmp_path / "a" / "run.json") == extended
    assert [step for step, *_ in losses(tmp_path / "a")] == list(range(1, 31))


def test_what_cannot_be_extended_says_so(tmp_path: Path) -> None:
    train(config(), tmp_path)  # keeps no checkpoint
    with pytest.raises(SettingError, match=r"finished and has no checkpoint to extend it from.*--from "):
        train(config(steps=30), tmp_path, control=Control(extend=True))
    with pytest.raises(SettingError, match=r"other settings \(train.seed was 0, is now 1\)"):
        train(config(steps=30, seed=1), tmp_path, control=Control(extend=True))
    with pytest.raises(SettingError, match=r"other settings \(train.steps was 24, is now 20\)"):
        train(config(steps=20), tmp_path, control=Control(extend=True))


def test_training_starts_from_the_weights_of_a_run_a_model_or_a_checkpoint(tmp_path: Path) -> None:
    source = tmp_path / "source"
    train(config(), source, control=Control(keep=True))
    sources = [source, source / "model", source / "checkpoint.safetensors"]
    started = [tuned(str(path)) for path in sources]
    for settings in started:  # the first loss is that of these weights, whatever is started from
        assert loss_of_first_step(settings) == loss_of_first_step(started[0])
        assert loss_of_first_step(settings) != loss_of_first_step(config(seed=5))
    assert all(same(open_model(path).load().state_dict(), weights(source)) for path in sources)
    done = train(started[0], tmp_path / "tuned")
    assert done.config.train.start == str(source)
    assert done.config.train.start_sha256 == open_model(source).sha256
    assert Record.read(tmp_path / "tuned" / "run.json") == done
    source.rename(tmp_path / "moved")
    assert train(tuned(str(tmp_path / "moved")), tmp_path / "tuned") == done
    with pytest.raises(SettingError, match=r"train.start_sha256 was '\w+', is now None"):
        train(config(seed=5), tmp_path / "tuned")


def tuned(start: str) -> RunConfig:
    return config(start=start, seed=5, warmup=0)


def loss_of_first_step(settings: RunConfig) -> float:
    first: list[float] = []

    def note(p: Progress) -> None:
        first.append(p.loss)

    with pytest.raises(StoppedError):
        train(settings, None, note, Control(stop=lambda: True))
    return first[0]


def test_weights_that_do_not_fit_are_named(tmp_path: Path) -> None:
    LanguageModel.seeded(dataclasses.replace(MODEL, pattern="attention"), 0).save(tmp_path / "attention")
    settings = config(start=str(tmp_path / "attention"))
    with pytest.raises(SettingError, match=r"attention, softmax\) do not fit exponential\+cache, softmax: missing: bl"):
        train(settings)
    other = RunConfig(ModelConfig(vocab_size=20, layers=1, dim=16, heads=2, pattern="attention"), TASK, settings.train)
    with pytest.raises(SettingError, match=r"do not fit .*extra: blocks.1"):
        train(other)
    with pytest.raises(SettingError, match=r"expected the folder of a run or of a saved model, .*does not exist"):
        train(config(start=str(tmp_path / "nothing")))
    with pytest.raises(
        SettingError, match=r"is not the model that this run starts from: expected weights with sha256 0"
    ):
        train(config(start=str(tmp_path / "attention"), start_sha256="0" * 64))

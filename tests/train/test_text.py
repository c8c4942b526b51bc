"""Training on text: the same loop, perplexity that others compute alike, runs that go on to the bit."""

import json
import math
import resource
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from resolvent.files import DiskFullError
from resolvent.model import LanguageModel, ModelConfig
from resolvent.tasks import Text, task
from resolvent.text import Corpus, TextError, prepare
from resolvent.train import Progress, Record, RunConfig, TrainConfig, train
from resolvent.train.evaluations import TextEvaluation
from resolvent.train.perplexity import mean_loss, on_text, perplexity
from tests import processes
from tests.commands import command
from tests.operator_cases import TOLERANCE
from tests.small_runs import WORDS

ROUNDING = TOLERANCE[torch.float32]


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Some thousand words in random order."""
    folder = tmp_path_factory.mktemp("text")
    rng = np.random.default_rng(0)
    (folder / "words.txt").write_text(" ".join(rng.choice(WORDS, 2000)))
    return str(prepare([str(folder / "words.txt")], folder / "corpus", "bytes").folder)


def config(corpus: str, pattern: str = "quadratic", **changes: Any) -> RunConfig:
    settings = {"steps": 12, "warmup": 2, "batch": 4, "eval_every": 6, "eval_batches": 2, "checkpoint_every": 3,
                "log_every": 1, "solved": None} | changes  # fmt: skip
    text = Text(corpus, 32).prepared()
    model = ModelConfig(vocab_size=text.vocab_size, layers=2, dim=16, heads=2, pattern=pattern)
    return RunConfig(model, text, TrainConfig(**settings))


def model_for(corpus: str, pattern: str = "quadratic") -> LanguageModel:
    return LanguageModel.seeded(config(corpus, pattern).model, 0)


class KilledError(Exception):
    pass


def test_it_learns_and_says_so(corpus: str, tmp_path: Path) -> None:
    done = train(config(corpus, steps=150, learning_rate=1e-2, eval_every=50), tmp_path)
    found = done.evaluation
    assert isinstance(found, TextEvaluation)
    assert found.split == "validation"
    assert found.perplexity < 8  # letters of the words come to about 3.4, single letters to 13
    count = Text(corpus).opened.counts["validation"].tokens
    assert found.tokens == count - 1  # nothing comes before the first
    assert found.bits_per_byte == pytest.approx(found.loss / math.log(2) * (count - 1) / count)
    assert [point.step for point in done.curve] == [50, 100, 150]
    assert done.curve[-1].value < done.curve[0].value
    assert done.config.task.settings()["tokenizer"] == "bytes"
    assert (tmp_path / "model" / "config.json").exists()


# A process for each life of a run, killed some steps on or while it saves; the one that imports never trains itself.
# A life waits for its end soon after, so that none is over before, however the machine shares out its time.
KILLS = """
import json, os, random, signal, sys, threading, time
from pathlib import Path
import torch._dynamo  # which an optimizer's first step imports, for seconds: once, and not in every life
from resolvent.train import RunConfig, train
config, folder = RunConfig.from_dict(json.loads(sys.argv[1])), Path(sys.argv[2])
rng = random.Random(0)

def kill(after=0.0):
    time.sleep(after)
    os.kill(os.getpid(), signal.SIGKILL)

def some_steps_on(begin, after):
    steps = 0
    def report(_):
        nonlocal steps
        steps += 1
        if steps == begin:
            threading.Thread(target=kill, args=(after,)).start()
        if steps == begin + 2:
            threading.Event().wait()
    return report

def while_it_saves(before):
    fsync = os.fsync
    def killing(handle):
        saving = any(folder.glob(f"cut/.checkpoint*.{os.getpid()}.*"))
        if saving and before:
            kill()
        fsync(handle)
        if saving:
            kill()
    os.fsync = killing

def start(out, prepare=lambda: None):
    child = os.fork()
    if child == 0:
        train(config, out, prepare() or (lambda _: None))
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

assert start(folder / "whole") == 0
for turn in range(8):
    begin, after = rng.randrange(1, 4), rng.uniform(0, 0.01)
    prepare = (lambda: while_it_saves(turn % 4 == 1)) if turn % 2 else (lambda: some_steps_on(begin, after))
    assert start(folder / "cut", prepare) == -signal.SIGKILL, turn
assert start(folder / "cut") == 0
"""


def test_killed_again_and_again(corpus: str, tmp_path: Path) -> None:
    """In the middle of steps, evaluations and checkpoints: every life goes on, and the curve is that of one life."""
    how = config(corpus, "dense", steps=40, checkpoint_every=2, eval_every=10)  # its kernels need no compiling
    done = processes.run("-c", KILLS, json.dumps(how.to_dict()), str(tmp_path))
    assert done.returncode == 0, done.stderr
    whole, cut = (Record.read(tmp_path / name / "run.json") for name in ("whole", "cut"))
    for part in ("steps", "tokens", "skipped_steps", "evaluation", "curve"):
        assert getattr(cut, part) == getattr(whole, part)
    logged = [
        [{**json.loads(line), "seconds": 0, "tokens_per_second": 0} for line in path.read_text().splitlines()]
        for path in (tmp_path / name / "metrics.jsonl" for name in ("whole", "cut"))
    ]
    assert logged[0] == logged[1]
    assert len(logged[0]) == 40
    models = [{p.name: p.read_bytes() for p in (tmp_path / name / "model").iterdir()} for name in ("whole", "cut")]
    assert sorted(models[0]) == sorted(models[1])
    assert models[0] == models[1]
    left = sorted(path.name for path in (tmp_path / "cut").iterdir())
    assert left == ["config.toml", "metrics.jsonl", "model", "run.json"]


@pytest.mark.parametrize("most", [300, 10_000])
def test_a_full_disk_loses_nothing(corpus: str, tmp_path: Path, most: int) -> None:
    """A limit on the size of files stands in for the disk: the log does not fit, or the checkpoint alone."""

    def kill(p: Progress) -> None:
        if p.step == 4:
            raise KilledError

    whole = train(config(corpus), tmp_path / "whole")
    with pytest.raises(KilledError):
        train(config(corpus), tmp_path / "cut", kill)
    before = {path: path.read_bytes() for path in (tmp_path / "cut").iterdir()}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    try:
        with pytest.raises(
            DiskFullError, match=r"no space left to write .*cut.*free some space, then rerun the same command"
        ):
            train(config(corpus), tmp_path / "cut")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert {path: path.read_bytes() for path in before if path.suffix == ".safetensors"}.items() <= before.items()
    cut = train(config(corpus), tmp_path / "cut")
    assert cut.curve == whole.curve
    assert cut.evaluation == whole.evaluation
    assert len((tmp_path / "cut" / "metrics.jsonl").read_text().splitlines()) == 12


def test_a_config_reads_no_file_and_a_run_opens_its_corpus_once(
    corpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, opened, real = config(corpus).train, list[str](), Corpus.open

    def counted(folder: str | Path, *arguments: Any, **named: Any) -> Corpus:
        opened.append(str(folder))
        return real(folder, *arguments, **named)

    monkeypatch.setattr(Corpus, "open", counted)
    model = ModelConfig(vocab_size=257, layers=1, dim=16, heads=2)
    moved = RunConfig(model, Text(str(tmp_path / "nowhere")), settings).changed(["task.context=16"])
    assert RunConfig.from_dict(moved.to_dict()) == moved
    assert not opened
    with pytest.raises(TextError, match="there is no corpus in"):
        train(moved, tmp_path / "run")
    assert not (tmp_path / "run").exists()  # nothing is made before the corpus has been looked at
    opened.clear()
    done = train(RunConfig(model, Text(corpus, 32), settings), tmp_path / "run")
    assert opened == [corpus]
    assert done.config.task == Text(corpus, 32).prepared()


@pytest.mark.parametrize("stride", [None, 8])
def test_perplexity_is_what_others_compute(corpus: str, stride: int | None) -> None:
    """One window after another, one token after another, with log_softmax in float64."""
    model, text = model_for(corpus).double(), Text(corpus, 32)
    found = on_text(model, text, 5, stride=stride)
    row = text.opened.split("validation").astype(np.int64)
    step = 32 if stride is None else stride
    total, counted, begin = 0.0, 0, 0
    while counted < len(row) - 1:
        window = torch.from_numpy(row[begin : begin + 33])
        scores = model(window[None, :-1])[0].detach().log_softmax(-1)
        first = counted - begin
        total -= sum(float(scores[i, window[i + 1]]) for i in range(first, len(window) - 1))
        counted += len(window) - 1 - first
        begin += step
    assert found.tokens == counted == len(row) - 1
    assert found.loss == pytest.approx(total / counted, rel=ROUNDING)  # the loss is taken in float32
    assert found.perplexity == pytest.approx(math.exp(total / counted), rel=ROUNDING)
    assert sum(each.count for each in found.by_position) == counted
    assert sum(each.count * each.value for each in found.by_position) == pytest.approx(total, rel=ROUNDING)


def test_texts_are_told_apart_by_what_is_held_out(tmp_path: Path) -> None:
    found = []
    for name, held_out in (("a", "one text"), ("b", "another")):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "train.txt").write_text("the cat sat on the mat " * 20)
        (folder / "validation.txt").write_text(held_out)
        found.append(Text(str(prepare(folder, tmp_path / f"corpus-{name}", "bytes").folder), 32).prepared())
    assert found[0].sha256 != found[1].sha256
    assert config(found[0].corpus).differences(config(found[1].corpus)).startswith("task.sha256 was '")
    shutil.copytree(found[0].corpus, tmp_path / "moved")
    assert not config(str(tmp_path / "moved")).differences(config(found[0].corpus))


def test_what_does_not_fit_is_refused(corpus: str) -> None:
    small = ModelConfig(vocab_size=100, layers=1, dim=16, heads=2)
    for call, message in (
        (lambda: Text(corpus, 1_000_000).prepared(), "too short: expected more than 1,000,000 tokens"),
        (lambda: Text(corpus, 32, sha256="0" * 64).prepared(), "is not the corpus of this run"),
        (lambda: config(corpus).changed(["task.tokenizer=gpt2"]), "corpus of this run: expected tokenizer gpt2, got b"),
        (lambda: task("text", {"corpus": corpus, "contxt": 3}), "unknown setting 'contxt' of text.*mean 'context'"),
        (lambda: task("text"), r"text is missing a setting.*'corpus'"),
        (lambda: RunConfig(small, Text(corpus), TrainConfig()).prepared(), "text has 257 tokens: expected a model"),
        (lambda: mean_loss(model_for(corpus), []), "at least one target"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    assert (perplexity(0.0), perplexity(1e4), perplexity(math.inf)) == (1.0, math.inf, math.inf)


def loss_of(run: Path) -> float:
    evaluation = Record.read(run / "run.json").evaluation
    assert isinstance(evaluation, TextEvaluation)
    return evaluation.loss


def test_commands(corpus: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    quick = [w for c in ("train.steps=6", "train.batch=2", "train.eval_batches=1", "task.context=32", "model.dim=24")
             for w in ("--set", c)]  # fmt: skip
    done = command("train", "text", "--corpus", corpus, "--out", str(run), *quick)
    assert done.returncode == 0, done.stderr
    assert "bits per byte on validation, after 6 steps" in done.stdout
    assert "6 steps of 2 × 32 = 64 tokens, 0.0" in done.stderr
    assert "of this machine's matmul peak (" in done.stdout
    prompted = ("generate", str(run), "--prompt", "the cat", "--tokens", "8", "--temperature", "0")
    generated = command(*prompted)
    assert generated.returncode == 0, generated.stderr
    assert "8 tokens, " in generated.stderr
    assert "the cat" + json.loads(command(*prompted, "--json").stdout)["text"] == generated.stdout.rstrip("\n")
    measured = json.loads(command("evaluate", str(run), "--corpus", corpus, "--json").stdout)  # contexts as trained
    assert measured["loss"] == pytest.approx(loss_of(run), rel=ROUNDING)
    missing = command("train", "text")
    assert missing.returncode == 2
    assert "expected --corpus" in missing.stderr
    assert "Did you mean 'text'?" in command("train", "txt").stderr
    assert "makes its own sequences" in command("train", "copy", "--corpus", corpus).stderr

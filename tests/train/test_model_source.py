"""Every command that takes a model takes a run, a model's folder or a checkpoint, and finds its tokenizer."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from resolvent.cli import app
from resolvent.model import LanguageModel, ModelConfig
from resolvent.tasks import Text
from resolvent.text import prepare, train_tokenizer
from resolvent.train import Progress, RunConfig, TrainConfig, train
from resolvent.train.model_source import open_model
from tests.small_runs import WORDS
from tests.train.test_train import KilledError, config

PROMPT = "the cat"


@pytest.fixture(scope="module", params=["bytes", "file"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on the tokens of each, and in `cut` the same run with a checkpoint."""
    folder = tmp_path_factory.mktemp(request.param)
    (folder / "words.txt").write_text(" ".join(np.random.default_rng(0).choice(WORDS, 1500)))
    name = "bytes"
    if request.param == "file":
        name = str(train_tokenizer(folder / "words.txt", folder / "bpe.json", 300).path)
    text = Text(str(prepare([folder / "words.txt"], folder / "corpus", name).folder), 16).prepared()
    model = ModelConfig(vocab_size=text.vocab_size, layers=2, dim=16, heads=2, pattern="quadratic")
    settings = RunConfig(model, text, TrainConfig(steps=4, warmup=1, batch=2, eval_every=4, eval_batches=1,
                                                checkpoint_every=2, solved=None))  # fmt: skip

    def kill(p: Progress) -> None:
        if p.step == 3:
            raise KilledError

    train(settings, folder / "run")
    with pytest.raises(KilledError):
        train(settings, folder / "cut", kill)
    return folder / "run"


def output(*words: str) -> str:
    return CliRunner().invoke(app, list(words), catch_exceptions=False).stdout


def error_of(*words: str) -> str:
    return str(CliRunner().invoke(app, list(words)).exception)


def test_generate_inspect_and_evaluate_take_all_of_them(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run / "model", tmp_path / "model")  # a model alone, elsewhere
    checkpoint = run.parent / "cut" / "checkpoint.safetensors"
    [weights] = (run / "model").glob("*.safetensors")
    texts = {}
    for path in (run, run / "model", tmp_path / "model", weights, run.parent / "cut", checkpoint):
        arguments = ("--prompt", PROMPT, "--tokens", "6", "--temperature", "0", "--json")
        texts[path] = json.loads(output("generate", str(path), *arguments))["text"]
        assert len(json.loads(output("runs", "inspect", str(path), "--text", PROMPT, "--json"))) == 2
        evaluation = json.loads(output("evaluate", str(path), "--corpus", str(run.parent / "corpus"), "--json"))
        assert evaluation["tokens"] > 50
    finished = {texts[path] for path in (run, run / "model", tmp_path / "model", weights)}
    assert len(finished) == 1
    assert texts[run.parent / "cut"] == texts[checkpoint]
    stored, loaded = load_file(checkpoint), open_model(checkpoint).load().state_dict()
    assert all(torch.equal(t, stored[f"model/{name}"]) for name, t in loaded.items())  # those of its step


def test_a_tokenizer_that_is_gone_is_named(run: Path, tmp_path: Path) -> None:
    if not (run / "tokenizer.json").exists():
        return
    moved = Path(shutil.copytree(run, tmp_path / "run"))
    (moved / "tokenizer.json").unlink()
    assert open_model(moved).tokenizer().encode(PROMPT).size  # that of the model
    (moved / "model" / "tokenizer.json").unlink()
    assert "is missing: expected a tokenizer.json in" in error_of("generate", str(moved))
    given = ["generate", str(moved), "--tokenizer", str(run / "tokenizer.json"), "--tokens", "2", "--prompt", PROMPT]
    assert output(*given).startswith(PROMPT)


def test_tokens_of_another_tokenizer_are_refused(run: Path, tmp_path: Path) -> None:
    (tmp_path / "other.txt").write_text("so they say, and so it was\n" * 60)
    other = train_tokenizer(tmp_path / "other.txt", tmp_path / "other.json", 260).path
    corpus = prepare([tmp_path / "other.txt"], tmp_path / "corpus", other).folder
    message = error_of("evaluate", str(run), "--corpus", str(corpus))
    assert "was trained on tokens of" in message
    assert "prepare it again with --tokenizer" in message


def test_what_is_not_a_model(tmp_path: Path) -> None:
    assert "expected the folder of a run or of a saved model" in error_of("generate", str(tmp_path / "none"))
    assert "holds no run, saved model or checkpoint" in error_of("runs", "inspect", str(tmp_path))
    (tmp_path / "notes.txt").write_text("notes")
    assert "notes.txt, which is none of them" in error_of("generate", str(tmp_path / "notes.txt"))
    (tmp_path / "metrics.jsonl").write_text("")
    assert "interrupted before its first checkpoint" in error_of("generate", str(tmp_path))
    LanguageModel.seeded(ModelConfig(vocab_size=1000, layers=1, dim=8, heads=1), 0).save(tmp_path / "model")
    assert "is unknown: expected --tokenizer" in error_of("generate", str(tmp_path / "model"))


def test_a_folder_of_transformers_is_read(tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    from resolvent.hf import from_language_model
    from resolvent.hf.tokenizer import fast_tokenizer

    model = LanguageModel.seeded(ModelConfig(vocab_size=257, layers=1, dim=8, heads=1), 0)
    from_language_model(model).save_pretrained(tmp_path / "saved")
    fast_tokenizer("bytes").save_pretrained(tmp_path / "saved")
    model.save(tmp_path / "ours")
    (tmp_path / "words.txt").write_text("so they say, and so it was\n" * 60)
    corpus = str(prepare([tmp_path / "words.txt"], tmp_path / "corpus", "bytes").folder)
    for arguments in (("generate", "--temperature", "0", "--tokens", "4"), ("evaluate", "--corpus", corpus)):
        command, *options = arguments
        results = [json.loads(output(command, str(tmp_path / name), *options, "--json")) for name in ("saved", "ours")]
        for result in results:
            result.pop("seconds", None)
        assert results[0] == results[1]
    assert open_model(tmp_path / "saved").config == model.config
    listed = CliRunner().invoke(app, ["runs", str(tmp_path / "saved")])
    assert "saved is a saved model, and not a run: 'resolvent evaluate' and 'resolvent generate' take" in listed.stderr
    GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=4, n_head=1, vocab_size=9)).save_pretrained(tmp_path / "gpt2")
    assert "is a Hugging Face 'gpt2' model, not a resolvent model: expected one of 'resolvent train'" in error_of(
        "generate", str(tmp_path / "gpt2")
    )


def test_a_run_on_a_task_shows_the_answers_of_its_model(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(config(), run)
    lines = output("generate", str(run)).splitlines()
    assert lines[0].startswith("A sequence of the task copy; below it the expected answers, and below those the model")
    tokens, expected, answers = (line.split() for line in lines[2:5])
    assert tokens[1:8] == expected
    right = sum(a == b for a, b in zip(expected, answers, strict=True))
    assert lines[-1] == f"{right} of 7 correct"
    content = json.loads(output("generate", str(run), "--json"))
    assert content["correct"] == right
    model, batch = open_model(run).load(), torch.tensor([content["tokens"]])
    assert model(batch)[0, 8:].argmax(-1).tolist() == content["answers"][8:]
    assert f"'resolvent runs inspect {run / 'model'} --tokens 1,2,3', which takes" in error_of(
        "runs", "inspect", str(run)
    )
    output("runs", "inspect", str(run), "--tokens", "1,2,3")


def test_the_closest_path_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "runs" / "copy-small-dense-seed0").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    for words in (
        ["generate", "runs/copy-smal-dense-seed0"],
        ["generate", "run/copy-small-dense-seed0"],
        ["evaluate", "copy-small-dense-seed0", "--corpus", "corpus"],
        ["runs", "compare", "runs/copy-small-dense-seed1", "runs/copy-small-dense-seed0"],
    ):
        assert error_of(*words).endswith("Did you mean 'runs/copy-small-dense-seed0'?")
    assert error_of("generate", "nothing/like/it").endswith("which does not exist.")
    assert error_of("runs", "run").endswith("Did you mean 'runs'?")

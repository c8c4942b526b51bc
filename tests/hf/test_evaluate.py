"""Tasks of lm-eval in local files: log-likelihoods are ours, texts for long contexts have an answer."""

import json
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from resolvent.cli import app
from resolvent.model import LanguageModel, ModelConfig

YAML = """task: endings
dataset_path: json
dataset_kwargs: {data_files: {test: endings.jsonl}}
test_split: test
output_type: loglikelihood
doc_to_text: "{{text}}"
doc_to_target: "{{ending}}"
target_delimiter: ""
metric_list: [{metric: perplexity, aggregation: perplexity, higher_is_better: false}]
"""
ENDINGS = [("to be or not", " to be"), ("héllo", " wörld"), ("a" * 3000, "b")]


@pytest.fixture
def model(tmp_path: Path) -> LanguageModel:
    config = ModelConfig(vocab_size=257, layers=2, dim=32, heads=2, pattern="exponential+cache", init_std=0.3)
    model = LanguageModel.seeded(config, 0)
    model.save(tmp_path / "model")
    (tmp_path / "endings.yaml").write_text(YAML, encoding="utf-8")
    rows = [json.dumps({"text": text, "ending": ending}) for text, ending in ENDINGS]
    (tmp_path / "endings.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return model


def log_likelihood(model: LanguageModel, text: str, ending: str) -> float:
    """By our own code for perplexity, from bytes."""
    ids, count = torch.tensor([[*(text + ending).encode()]]), len(ending.encode())
    targets = ids[:, 1:].clone()
    targets[:, :-count] = -100
    return -count * float(model.loss(ids[:, :-1], targets).detach())


def test_log_likelihoods_are_ours(model: LanguageModel, tmp_path: Path) -> None:
    """Of texts longer than what lm-eval would cut, too; in a process of its own, which stays offline."""
    pytest.importorskip("lm_eval")
    command = ["evaluate", "model", "--tasks", "endings.yaml", "--tokenizer", "bytes", "--json"]
    done = subprocess.run([sys.executable, "-m", "resolvent", *command], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    expected = sum(log_likelihood(model, text, ending) for text, ending in ENDINGS) / len(ENDINGS)
    measured = json.loads(done.stdout)["endings"]["perplexity"]
    assert measured == pytest.approx(torch.tensor(-expected).double().exp().item(), rel=1e-3)


def test_a_saved_folder_is_taken_by_lm_eval_itself(model: LanguageModel, tmp_path: Path) -> None:
    lm_eval = pytest.importorskip("lm_eval")
    from lm_eval.tasks import TaskManager

    from resolvent.hf import from_language_model
    from resolvent.hf.evaluate import read_task
    from resolvent.hf.tokenizer import fast_tokenizer

    from_language_model(model, eos_token_id=256).save_pretrained(tmp_path / "hf")
    fast_tokenizer("bytes").save_pretrained(tmp_path / "hf")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of theirs
        output = lm_eval.simple_evaluate(
            "hf", model_args={"pretrained": str(tmp_path / "hf"), "max_length": 4096}, device="cpu",
            tasks=[read_task(tmp_path / "endings.yaml")], task_manager=TaskManager(include_defaults=False),
            bootstrap_iters=0,
        )  # fmt: skip
    found = [sample["resps"][0][0][0] for sample in output["samples"]["endings"]]
    expected = [log_likelihood(model, text, ending) for text, ending in ENDINGS]
    assert found == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(("content", "message"), [
    ("task: x\ndataset_path: glue", "expected dataset_kwargs"),
    ("task: x\ndataset_path: glue\ndataset_kwargs: {}", "expected dataset_path to be json or csv or parquet or text"),
    ("task: x\ndoc_to_text: !function code.f", "without functions"),
    (YAML.replace("endings.jsonl", "missing.jsonl"), "which does not exist"),
])  # fmt: skip
def test_tasks_that_are_not_local_files_raise_errors(content: str, message: str, tmp_path: Path) -> None:
    from resolvent.hf.evaluate import read_task

    path = tmp_path / "task.yaml"
    path.write_text(content, encoding="utf-8")
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        read_task(path)


def test_evaluate_wants_a_text_or_tasks(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected --corpus, the folder of a prepared text, or --tasks"):
        CliRunner().invoke(app, ["evaluate", str(tmp_path)], catch_exceptions=False)

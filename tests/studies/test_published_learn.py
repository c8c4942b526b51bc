"""Published patterns and a pair as layers: each learns to copy, on a few symbols and in seconds."""

from pathlib import Path

import pytest

from resolvent.model.config import ModelConfig
from resolvent.tasks import Copy
from resolvent.train import RunConfig, TrainConfig, train

TASK = Copy(vocab_size=16, length=6, least=6)  # guesses that look nothing up score below 0.3
TRAINING = TrainConfig(steps=250, warmup=20, eval_every=50, eval_batches=2, learning_rate=5e-3, batch=32)


@pytest.mark.parametrize("spec", ["sparse-transformer:8", "bigbird:4,2,2", "fenwick", "local:4/exponential"])
def test_learns_to_copy(spec: str, tmp_path: Path) -> None:
    model = ModelConfig(vocab_size=16, layers=3, dim=32, heads=2, pattern=spec, init_std=0.1)
    record = train(RunConfig(model, TASK, TRAINING), tmp_path)
    assert record.evaluation.value > 0.9, record.curve

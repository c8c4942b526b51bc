"""The command line: a thin layer that reads arguments, calls the library and prints."""

from resolvent.cli import (
    bench,
    convert,
    data,
    design,
    evaluate,
    explore,
    gpu_check,
    model,
    patterns,
    runs,
    study,
    train,
    tune,
    warm_up,
)
from resolvent.cli.shared import app, main

__all__ = [
    "app", "bench", "convert", "data", "design", "evaluate", "explore", "gpu_check", "main", "model",
    "patterns", "runs", "study", "train", "tune", "warm_up",
]  # fmt: skip

"""The command line: a thin layer that reads arguments, calls the library and prints."""

from resolvent.cli import (
    bench,
    convert,
    data,
    design,
    evaluate,
    explore,
    figure,
    gpu_check,
    model,
    patterns,
    results,
    runs,
    study,
    train,
    tune,
    warm_up,
)
from resolvent.cli.shared import app, main

__all__ = [
    "app", "bench", "convert", "data", "design", "evaluate", "explore", "figure", "gpu_check", "main", "model",
    "patterns", "results", "runs", "study", "train", "tune", "warm_up",
]  # fmt: skip

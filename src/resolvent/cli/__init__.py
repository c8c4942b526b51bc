"""The command line: a thin layer that reads arguments, calls the library and prints."""

from resolvent.cli import (
    analyze,
    bench,
    bench_gpu,
    data,
    design,
    explore,
    models,
    runs,
    study,
    train,
    tune,
    warm_up,
)
from resolvent.cli.shared import app, main

__all__ = [
    "analyze",
    "app",
    "bench",
    "bench_gpu",
    "data",
    "design",
    "explore",
    "main",
    "models",
    "runs",
    "study",
    "train",
    "tune",
    "warm_up",
]

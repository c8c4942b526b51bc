"""The command line: a thin layer that reads arguments, calls the library and prints."""

from resolvent.cli import bench, convert, data, figure, model, patterns, results, study, train
from resolvent.cli.shared import app, main

__all__ = ["app", "bench", "convert", "data", "figure", "main", "model", "patterns", "results", "study", "train"]

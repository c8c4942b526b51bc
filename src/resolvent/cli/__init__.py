"""The command line: a thin layer that reads arguments, calls the library and prints."""

# Each module adds its commands to the application, in the order in which they are listed.
from resolvent.cli import analyze, design, explore, data, train, models, study, tune, bench, bench_gpu, runs, warm_up  # noqa: F401, I001
from resolvent.cli.shared import app, main

__all__ = ["app", "main"]

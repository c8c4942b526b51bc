"""Valid files to damage: made by the package once, and kept in memory."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from functools import cache
from pathlib import Path

from resolvent.model import ModelConfig
from resolvent.tasks import Copy
from resolvent.text import prepare
from resolvent.train import Progress, RunConfig, TrainConfig, train
from tests.bench import samples as bench_samples

Files = dict[str, bytes]
CONFIG = RunConfig(
    ModelConfig(vocab_size=20, layers=2, dim=8, heads=2, pattern=["exponential+cache", "local:3"]),
    Copy(vocab_size=20, length=4),
    TrainConfig(steps=6, warmup=1, batch=2, eval_every=3, eval_batches=1, checkpoint_every=2, log_every=1),
)
SHARDED = dataclasses.replace(CONFIG, train=dataclasses.replace(CONFIG.train, parallel="shard"))


class Stopped(Exception):  # noqa: N818  # as a kill would
    """A run that has gone far enough."""


def stop_at(step: int) -> object:
    def stop(progress: Progress) -> None:
        if progress.step >= step:
            raise Stopped

    return stop


def _files(folder: Path) -> Files:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def write(files: Files, folder: Path) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


@cache
def finished_run() -> Files:
    """A record, metrics, and the model in its folder."""
    with tempfile.TemporaryDirectory() as folder:
        train(CONFIG, Path(folder))
        return _files(Path(folder))


@cache
def benchmarks() -> Files:
    """Records of every kind."""
    lines = [json.dumps(record.to_dict()) for record in bench_samples.everything()]
    return {"bench.jsonl": "\n".join(lines).encode() + b"\n"}


@cache
def interrupted_run(*, sharded: bool) -> Files:
    """A checkpoint, in one file or as a folder, and metrics."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            train(SHARDED if sharded else CONFIG, Path(folder), stop_at(5))  # type: ignore[arg-type]
        except Stopped:
            return _files(Path(folder))
    raise AssertionError("the run was not stopped.")


@cache
def corpus() -> Files:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "source"
        source.mkdir()
        for split, text in {"train": "Tom\nJerry\n" * 9, "validation": "é", "test": "end"}.items():
            (source / f"{split}.txt").write_text(text)
        prepare(source, Path(folder) / "out", "bytes")
        return _files(Path(folder) / "out")


@cache
def make_all() -> None:
    finished_run()
    interrupted_run(sharded=False)
    interrupted_run(sharded=True)
    corpus()

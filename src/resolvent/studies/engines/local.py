"""Cells as processes on this machine. Where there are GPUs, each cell has one to itself."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import final

from resolvent.studies.engines.engine import Engine, Job, check_options, start_process


@final
class LocalEngine:
    """As many cells at once as there are cores, unless told otherwise, and at most as many as there are GPUs."""

    def __init__(self) -> None:
        self._gpus = _gpus()
        self._jobs: dict[str, Job] = {}  # by GPU

    def jobs(self, asked: int | None, cells: int) -> int:
        return min(asked or os.cpu_count() or 1, len(self._gpus) or cells)

    def start(self, folder: Path, threads: int) -> Job:
        if not self._gpus:
            return start_process(folder, threads)
        gpu = next(gpu for gpu in self._gpus if gpu not in self._jobs or self._jobs[gpu].poll() is not None)
        self._jobs[gpu] = start_process(folder, threads, {"CUDA_VISIBLE_DEVICES": gpu})
        return self._jobs[gpu]

    def close(self) -> None:
        """Processes end by themselves."""


def from_options(options: Mapping[str, str]) -> Engine:
    check_options("local", options, ())
    return LocalEngine()


def _gpus() -> list[str]:
    import torch

    given = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    numbers = [str(number) for number in range(torch.cuda.device_count())]
    return given.split(",")[: len(numbers)] if given and numbers else numbers

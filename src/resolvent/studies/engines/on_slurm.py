"""Cells as jobs of a SLURM cluster, which submitit writes, submits and watches.

A job starts the cell's process and waits for it. SLURM queues a job again when its machine dies, and submitit does
before a time limit or a preemption; a job that vanishes in another way is submitted again a few times.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, final

from resolvent.errors import SettingError
from resolvent.studies.engines.engine import LOG, Engine, Job, note, run_process
from resolvent.train import record

if TYPE_CHECKING:
    import submitit

_FOLDER = "slurm"  # in that of a cell: scripts and output of its jobs, until it is finished
_CLUSTERS = ("slurm", "local")
_SHARED = ("timeout_min", "mem_gb", "gpus_per_node", "cpus_per_task")  # options of all of submitit's executors
_DAY = 24 * 60  # minutes; submitit's own limit is five
_ATTEMPTS = 4  # at most so many jobs for a cell, if they vanish
_FINAL = ("CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "DEADLINE")  # states after which none is submitted again


@final
class SlurmEngine:
    """Options are those of submitit's SlurmExecutor, such as partition, account, timeout_min, mem_gb, gpus_per_node.

    With `cluster="local"`, jobs run on this machine, as submitit runs them without SLURM.
    """

    def __init__(self, cluster: str = "slurm", **options: str | int) -> None:
        if cluster not in _CLUSTERS:
            raise SettingError(f"expected cluster {' or '.join(_CLUSTERS)}, got '{cluster}'.")
        self._submitit, self._cluster = _import_submitit(), cluster
        self._options = {name if name in _SHARED else f"slurm_{name}": value for name, value in options.items()}
        try:
            self._executor(Path(_FOLDER), 1)
        except RuntimeError as error:
            raise SettingError(
                f"expected a machine that submits jobs to SLURM, found no srun here ({error})."
            ) from error
        except (NameError, ValueError, AssertionError) as error:
            raise SettingError(f"options of slurm: {str(error).splitlines()[0]}") from error

    def jobs(self, asked: int | None, cells: int) -> int:
        return asked or cells  # SLURM has a queue

    def start(self, folder: Path, threads: int) -> Job:
        task, executor = _CellTask(str(folder), threads, str(Path.cwd())), self._executor(folder / _FOLDER, threads)
        return _SlurmJob(folder, executor, task, executor.submit(task))

    def _executor(self, folder: Path, threads: int) -> submitit.AutoExecutor:
        executor = self._submitit.AutoExecutor(folder, cluster=self._cluster)
        defaults = {"name": "resolvent", "timeout_min": _DAY, "cpus_per_task": threads}
        executor.update_parameters(**(defaults | self._options))
        return executor

    def close(self) -> None:
        """Nothing is open."""


def from_options(options: Mapping[str, str]) -> Engine:
    values: dict[str, str | int] = {key: int(v) if v.isdecimal() else v for key, v in options.items()}
    cluster = str(values.pop("cluster", "slurm"))
    return SlurmEngine(cluster, **values)


@dataclass(frozen=True)
class _CellTask:
    """What a job calls; with a method `checkpoint`, submitit queues it again before a time limit."""

    folder: str
    threads: int
    directory: str

    def __call__(self) -> int:
        return run_process(self.folder, self.threads, self.directory)

    def checkpoint(self) -> submitit.helpers.DelayedSubmission:
        return _import_submitit().helpers.DelayedSubmission(self)


@dataclass
class _SlurmJob:
    folder: Path
    executor: submitit.AutoExecutor
    task: _CellTask
    job: submitit.Job[int]
    attempts: int = 1

    def poll(self) -> int | None:
        """The cell's files say how it ended; submitit's own result, a pickle, is not read."""
        if not self.job.done():
            return None
        if (self.folder / record.FILE).exists():
            shutil.rmtree(self.folder / _FOLDER, ignore_errors=True)
            return 0
        state = self.job.state
        result = self.job.paths.result_pickle
        vanished = not result.exists() and not state.startswith(_FINAL)
        if vanished and self.attempts < _ATTEMPTS:
            self.attempts += 1
            self.job = self.executor.submit(self.task)
            return None
        log = self.folder / LOG
        if vanished or not log.exists() or not log.stat().st_size:
            note(self.folder, self.job.stderr() or f"job {self.job.job_id}: {state}")
        return 1

    def terminate(self) -> None:
        self.job.cancel(check=False)


def _import_submitit() -> ModuleType:
    try:
        return import_module("submitit")
    except ImportError as error:
        raise ImportError("--on slurm needs submitit: pip install submitit.") from error

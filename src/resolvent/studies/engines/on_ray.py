"""Cells as tasks of a Ray cluster: Ray finds free cores and GPUs, and runs a task again when its machine dies.

A task starts the cell's process, which inherits the GPUs that Ray names in CUDA_VISIBLE_DEVICES, and waits for it. Ray
ends the task when the study ends, however that ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, final

from resolvent.errors import SettingError
from resolvent.studies.engines.engine import Engine, Job, check_options, note, run_process

if TYPE_CHECKING:
    from ray import ObjectRef

_FOREVER = -1  # as often as machines die: a cell resumes from its checkpoint


@final
class RayEngine:
    """The cluster at `address`; by default the one that RAY_ADDRESS names, or that runs on this machine.

    Each cell has so many GPUs to itself: by default one, if the cluster has any.
    """

    def __init__(self, address: str = "auto", gpus: float | None = None) -> None:
        self._ray = ray = _import_ray()
        try:
            ray.init(address=address, log_to_driver=False, configure_logging=False)
        except ConnectionError as error:
            raise SettingError(
                f"expected a Ray cluster, found none at '{address}': start one with 'ray start --head', join it from "
                "other machines with 'ray start --address=…', or set RAY_ADDRESS."
            ) from error
        has_gpus = ray.cluster_resources().get("GPU", 0) > 0
        self._gpus = gpus if gpus is not None else float(has_gpus)

    def jobs(self, asked: int | None, cells: int) -> int:
        return asked or cells  # Ray has a queue

    def start(self, folder: Path, threads: int) -> Job:
        task = self._ray.remote(run_process).options(
            name=str(folder), num_cpus=threads, num_gpus=self._gpus, max_retries=_FOREVER
        )
        return _RayJob(self._ray, folder, task.remote(str(folder), threads, str(Path.cwd())))

    def close(self) -> None:
        self._ray.shutdown()


def from_options(options: Mapping[str, str]) -> Engine:
    check_options("ray", options, ("address", "gpus"))
    try:
        gpus = float(options["gpus"]) if "gpus" in options else None
    except ValueError:
        raise SettingError(f"expected gpus, of each cell, to be a number, got '{options['gpus']}'.") from None
    return RayEngine(options.get("address", "auto"), gpus)


@dataclass(frozen=True)
class _RayJob:
    ray: ModuleType
    folder: Path
    task: ObjectRef[int]

    def poll(self) -> int | None:
        if not self.ray.wait([self.task], timeout=0)[0]:
            return None
        try:
            return int(self.ray.get(self.task))
        except self.ray.exceptions.RayError as error:
            note(self.folder, str(error))
            return 1

    def terminate(self) -> None:
        self.ray.cancel(self.task, force=True)


def _import_ray() -> ModuleType:
    try:
        return import_module("ray")
    except ImportError as error:
        raise ImportError("--on ray needs Ray: pip install ray here and on all its machines.") from error

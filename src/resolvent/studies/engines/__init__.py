"""Where the cells of a study run: processes here, tasks on a Ray cluster, or jobs on a SLURM cluster.

All three start the same process on a cell's folder, so that records do not depend on the engine. A new engine is a
module with a function `from_options`, and an entry in `ENGINES`.
"""

from __future__ import annotations

from importlib import import_module

from resolvent.errors import SettingError, closest
from resolvent.studies.engines.engine import LOG, Engine, Job
from resolvent.studies.engines.local import LocalEngine

ENGINES = {"local": "local", "ray": "on_ray", "slurm": "on_slurm"}  # modules, imported when asked for

__all__ = ["ENGINES", "LOG", "Engine", "Job", "LocalEngine", "engine_of"]


def engine_of(spelling: str) -> Engine:
    """The engine of a spelling such as `local`, `ray` or `slurm:partition=gpu,timeout_min=600`."""
    name, _, settings = spelling.partition(":")
    if name not in ENGINES:
        raise SettingError(f"unknown engine '{name}': expected {', '.join(ENGINES)}.{closest(name, ENGINES)}")
    options = {}
    for setting in filter(None, settings.split(",")):
        key, equals, value = setting.partition("=")
        if not equals:
            raise SettingError(f"expected options of an engine as KEY=VALUE, got '{setting}' in '{spelling}'.")
        options[key.strip()] = value.strip()
    engine: Engine = import_module(f"{__name__}.{ENGINES[name]}").from_options(options)
    return engine

"""One factor at a time: a task of Table 1 with single settings changed, everything else as in the preset."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from resolvent.studies.grid import Cell, slug
from resolvent.studies.table1 import Preset, preset_of, run_config
from resolvent.train import RunConfig

UNCHANGED = "as in the preset"
_NONE = "none"


def cells(
    task: str,
    structures: Sequence[str],
    factors: Sequence[str],
    out: Path,
    *,
    preset: str = "small",
    seeds: Sequence[int] = (100, 101),
    changes: Sequence[str] = (),
) -> dict[str, list[Cell]]:
    """The cells of each setting: the preset as it is, then every value of every factor.

    A factor is `key=value,value,…`. Keys are those of `--set`, and two that concern the layer under study: `gate`, how
    it starts, and `first`, the pattern of the layer before it (`none`: the same).
    """
    size = preset_of(preset, [task])
    settings = [UNCHANGED, *(setting for factor in factors for setting in _values(factor))]
    return {
        setting: [
            Cell(task, structure, seed, _config(size, task, structure, seed, setting, changes),
                 out / task / structure.replace("/", "_") / slug(setting) / f"seed{seed}")
            for structure in structures
            for seed in seeds
        ]
        for setting in dict.fromkeys(settings)
    }  # fmt: skip


def _values(factor: str) -> list[str]:
    key, equals, values = factor.partition("=")
    if not equals or not key or not all(values.split(",")):
        raise ValueError(f"expected a factor such as model.rope=100,10000, got '{factor}'.")
    return [f"{key}={value}" for value in values.split(",")]


def _config(size: Preset, task: str, structure: str, seed: int, setting: str, changes: Sequence[str]) -> RunConfig:
    key, _, value = setting.partition("=")
    if key == "gate":
        size = dataclasses.replace(size, gates={**size.gates, structure: value})
    if key == "first":
        size = dataclasses.replace(size, first_blocks={} if value == _NONE else {**size.first_blocks, task: value})
    own = [] if setting == UNCHANGED or key in ("gate", "first") else [setting]
    return run_config(size, task, structure, seed).changed([*changes, *own])

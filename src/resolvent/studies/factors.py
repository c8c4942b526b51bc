"""One factor at a time: a task of Table 1 with single settings changed, everything else as in the preset."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from resolvent.errors import SettingError
from resolvent.patterns import pattern
from resolvent.studies.grid import Cell, folder_of, slug
from resolvent.studies.table1.cells import Table1Preset, preset_of, run_config

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

    A factor is `key=value,value,…`. Keys are those of `--set`, and two more: `gate`, an option of the rule in the layer
    under study, and `first`, the pattern of the layer before it (`none`: the same).
    """
    size = preset_of(preset, [task])
    settings = [UNCHANGED, *(setting for factor in factors for setting in _values(factor))]
    return {
        setting: [
            Cell(task, str(pattern(structure)), seed,
                 run_config(_changed(size, task, structure, setting), task, structure, seed)
                 .changed([*changes, *_assignments(setting)]),
                 folder_of(out / task, structure) / slug(setting) / f"seed{seed}")
            for structure in structures
            for seed in seeds
        ]
        for setting in dict.fromkeys(settings)
    }  # fmt: skip


def _values(factor: str) -> list[str]:
    key, equals, values = factor.partition("=")
    if not equals or not key or not all(values.split(",")):
        raise SettingError(f"expected a factor such as model.rope=100,10000, got '{factor}'.")
    return [f"{key}={value}" for value in values.split(",")]


def _changed(size: Table1Preset, task: str, structure: str, setting: str) -> Table1Preset:
    """The preset with `gate` or `first` changed."""
    key, _, value = setting.partition("=")
    if key == "gate":
        return dataclasses.replace(size, gates={**size.gates, pattern(structure).spelling: value})
    if key == "first":
        return dataclasses.replace(size, first_blocks={} if value == _NONE else {**size.first_blocks, task: value})
    return size


def _assignments(setting: str) -> list[str]:
    """Other settings are changed as by `--set`."""
    return [] if setting == UNCHANGED or setting.partition("=")[0] in ("gate", "first") else [setting]

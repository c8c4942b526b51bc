"""The paper's Table 1: nine structures on three tasks. What is run; `report/table1.py` says what is drawn from it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resolvent.model.config import ModelConfig
from resolvent.patterns import PAPER_STRUCTURES
from resolvent.patterns.errors import closest
from resolvent.studies.grid import Cell
from resolvent.tasks import TASKS
from resolvent.train import RunConfig, TrainConfig


@dataclass(frozen=True)
class Preset:
    """A size of the study. Settings that a task or a structure needs for itself are given beside."""

    about: str
    model: ModelConfig
    train: TrainConfig
    tasks: dict[str, dict[str, Any]]
    structures: tuple[str, ...] = tuple(PAPER_STRUCTURES)
    seeds: dict[str, int] = dataclasses.field(default_factory=dict)  # of tasks: how many, 1 unless given
    first_seed: int = 0
    train_of_task: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    learning_rates: dict[str, float] = dataclasses.field(default_factory=dict)  # of structures
    gates: dict[str, str] = dataclasses.field(default_factory=dict)  # of structures
    model_of_task: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    first_blocks: dict[str, str] = dataclasses.field(default_factory=dict)  # of tasks: the pattern of the first layer


PRESETS: dict[str, Preset] = {
    "smoke": Preset(
        about="copy of up to 16 symbols on five structures, two to four minutes on two cores",
        model=ModelConfig(vocab_size=64, layers=2, dim=64, heads=2, init_std=0.1),
        train=TrainConfig(steps=1200, warmup=100, eval_every=200, learning_rate=2e-3, batch=64),
        tasks={"copy": {"vocab_size": 64, "length": 16, "least": 4}},
        structures=("attention", "local:8", "first-order", "quadratic", "dense"),
    ),
    "small": Preset(
        about="copies of up to 24 symbols, up to 8 pairs (multi-hop 12); 63 runs in about an hour on two cores",
        model=ModelConfig(vocab_size=32, layers=2, dim=64, heads=2, init_std=0.05),
        train=TrainConfig(steps=2000, warmup=200, eval_every=250, learning_rate=2e-3, batch=64, eval_batches=16),
        tasks={
            "copy": {"vocab_size": 32, "length": 24, "least": 4},
            "recall": {"vocab_size": 32, "pairs": 8, "length": 32},
            "multihop": {"vocab_size": 32, "pairs": 12, "length": 48},
        },
        train_of_task={"multihop": {"curriculum": 0.3}},  # see docs/log.md
        first_blocks={"recall": "local:2", "multihop": "local:2"},
        seeds={"copy": 3, "recall": 2, "multihop": 2},
        first_seed=10,  # settings were chosen on others
    ),
    "paper": Preset(
        about="the paper's settings: 4M parameters, 20,000 steps of 1,024 sequences; for a GPU",
        model=ModelConfig(vocab_size=8192, layers=2, dim=256, heads=4),
        train=TrainConfig(
            steps=20_000,
            warmup=2000,
            eval_every=1000,
            learning_rate=3e-3,
            batch=1024,
            curriculum=0.75,
            eval_batches=8,
            checkpoint_every=1000,
            precision="float32",
        ),
        tasks={
            "copy": {"length": 128},
            "recall": {"pairs": 64, "length": 256},
            "multihop": {"pairs": 64, "length": 256},
        },
    ),
}


def cells(
    preset: str,
    out: Path,
    structures: Sequence[str] | None = None,
    tasks: Sequence[str] | None = None,
    seeds: int | None = None,
    changes: Sequence[str] = (),
) -> list[Cell]:
    """Every run of the study, in the order in which they are run: task by task, seed by seed."""
    size = preset_of(preset, tasks or ())
    found = []
    for task in tasks or size.tasks:
        for seed in range(size.first_seed, size.first_seed + (seeds or size.seeds.get(task, 1))):
            for structure in structures or size.structures:
                config = run_config(size, task, structure, seed).changed(changes)
                folder = out / task / structure.replace("/", "_") / f"seed{seed}"
                found.append(Cell(task, structure, seed, config, folder))
    return found


def preset_of(name: str, tasks: Sequence[str] = ()) -> Preset:
    """The preset of this name, which must have these tasks."""
    if name not in PRESETS:
        raise ValueError(f"unknown preset '{name}': expected {', '.join(PRESETS)}.{closest(name, PRESETS)}")
    for task in tasks:
        if task not in TASKS:
            raise ValueError(f"unknown task '{task}': expected {', '.join(TASKS)}.{closest(task, TASKS)}")
        if task not in PRESETS[name].tasks:
            raise ValueError(f"{name} has no task '{task}': expected {', '.join(PRESETS[name].tasks)}.")
    return PRESETS[name]


def run_config(size: Preset, task: str, structure: str, seed: int) -> RunConfig:
    """The settings of one cell."""
    rule = f"softmax:gate={size.gates[structure]}" if structure in size.gates else "softmax"
    pattern = (size.first_blocks[task], structure) if task in size.first_blocks else structure
    rules = ("softmax", rule) if task in size.first_blocks else rule
    changes = size.model_of_task.get(task, {})
    model = dataclasses.replace(size.model, pattern=pattern, coefficients=rules, **changes)
    special = dict(size.train_of_task.get(task, {}))
    if structure in size.learning_rates:
        special["learning_rate"] = size.learning_rates[structure]
    train = dataclasses.replace(size.train, seed=seed, **special)
    return RunConfig(model, {"name": task, **size.tasks[task]}, train)

"""What is run for the paper's Table 1: nine structures on three tasks, at several sizes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from resolvent.errors import SettingError, closest
from resolvent.model.config import ModelConfig
from resolvent.patterns import PAPER_STRUCTURES, pattern
from resolvent.studies.grid import Cell, folder_of
from resolvent.tasks import TASKS, Copy, MultiHop, Recall, Task
from resolvent.train.config import RunConfig, TrainConfig


@dataclass(frozen=True)
class Table1Preset:
    """A size of the study. Settings of single tasks or structures stand beside those of all."""

    about: str
    model: ModelConfig
    train: TrainConfig
    tasks: dict[str, Task]
    structures: tuple[str, ...] = tuple(PAPER_STRUCTURES)
    seeds: dict[str, int] = dataclasses.field(default_factory=dict)  # of tasks: how many, 1 unless given
    first_seed: int = 0
    curricula: dict[str, float] = dataclasses.field(default_factory=dict)  # of tasks
    gates: dict[str, str] = dataclasses.field(default_factory=dict)  # of structures
    first_blocks: dict[str, str] = dataclasses.field(default_factory=dict)  # of tasks: the pattern of the first layer


_GATED = tuple(name for name in PAPER_STRUCTURES if pattern(name).recurrent)

PRESETS: dict[str, Table1Preset] = {
    "smoke": Table1Preset(
        about="copy of up to 16 symbols on five structures, two to four minutes on two cores",
        model=ModelConfig(vocab_size=64, layers=2, dim=64, heads=2, init_std=0.1),
        train=TrainConfig(steps=1200, warmup=100, eval_every=200, learning_rate=2e-3, batch=64),
        tasks={"copy": Copy(vocab_size=64, length=16, least=4)},
        structures=("attention", "local:8", "first-order", "quadratic", "dense"),
    ),
    "small": Table1Preset(
        about="copies of up to 24 symbols, up to 8 pairs (multi-hop 12); 81 runs in about an hour on two cores",
        model=ModelConfig(vocab_size=32, layers=2, dim=64, heads=2, init_std=0.05),
        train=TrainConfig(steps=2000, warmup=200, eval_every=250, learning_rate=2e-3, batch=64, eval_batches=16),
        tasks={
            "copy": Copy(vocab_size=32, length=24, least=4),
            "recall": Recall(vocab_size=32, pairs=8, length=32),
            "multihop": MultiHop(vocab_size=32, pairs=12, length=48),
        },
        curricula={"multihop": 0.3},  # see docs/log.md
        first_blocks={"recall": "local:2", "multihop": "local:2"},
        seeds={"copy": 3, "recall": 3, "multihop": 3},
        first_seed=20,  # settings were chosen on others
    ),
    "paper": Table1Preset(
        about="exactly the paper's settings: 4M parameters, 20,000 steps of 1,024 sequences; for a GPU",
        model=ModelConfig(vocab_size=8192, layers=2, dim=256, heads=4),
        train=TrainConfig(
            steps=20_000,
            warmup=2000,
            eval_every=1000,
            learning_rate=3e-3,
            batch=1024,
            weight_decay=0.1,
            beta_1=0.9,
            beta_2=0.98,
            clip=1.0,
            curriculum=0.75,
            eval_batches=8,
            checkpoint_every=1000,
            precision="float16",
            solved=None,
            spike=None,
        ),
        tasks={
            "copy": Copy(length=128),
            "recall": Recall(pairs=64, length=256, placement="scattered"),
            "multihop": MultiHop(pairs=64, length=256, placement="scattered", chains="literal"),
        },
        gates=dict.fromkeys(_GATED, "mamba"),
    ),
}

# What is recommended at the paper's size. docs/results.md has a table of where and why it departs from `paper`.
PRESETS["large"] = dataclasses.replace(
    PRESETS["paper"],
    about="what is recommended at the paper's size: gates initialized to 0.5, bfloat16, an early stop; for a GPU",
    train=dataclasses.replace(PRESETS["paper"].train, precision="bfloat16", solved=0.999, curriculum=0.0),
    tasks={
        "copy": Copy(length=128),
        "recall": Recall(pairs=64, length=256),
        "multihop": MultiHop(pairs=64, length=256),
    },
    curricula=PRESETS["small"].curricula,
    first_blocks=PRESETS["small"].first_blocks,
    gates={},
)

# As `small`, but gates start where Mamba-2's do, as the paper's did: near 1 and not at 0.5.
PRESETS["small-mamba-gate"] = dataclasses.replace(
    PRESETS["small"],
    about="as small, with gates that start close to 1 (Mamba-2's initialization) wherever there are gates",
    structures=_GATED,
    gates=dict.fromkeys(_GATED, "mamba"),
)


def cells(
    preset: str,
    out: Path,
    *,
    structures: Sequence[str] | None = None,
    tasks: Sequence[str] | None = None,
    seeds: int | None = None,
    changes: Sequence[str] = (),
) -> list[Cell]:
    """Every run of the study, in the order in which they are run: task by task, seed by seed."""
    size = preset_of(preset, tasks or ())
    return [
        Cell(task, str(pattern(structure)), seed, run_config(size, task, structure, seed).changed(changes),
             folder_of(out / task, structure) / f"seed{seed}")
        for task in tasks or size.tasks
        for seed in range(size.first_seed, size.first_seed + (seeds or size.seeds.get(task, 1)))
        for structure in structures or size.structures
    ]  # fmt: skip


def preset_of(name: str, tasks: Sequence[str] = ()) -> Table1Preset:
    """The preset of this name, which must have these tasks."""
    if name not in PRESETS:
        raise SettingError(f"unknown preset '{name}': expected {', '.join(PRESETS)}.{closest(name, PRESETS)}")
    known = PRESETS[name].tasks
    for task in tasks:
        if task not in TASKS:
            raise SettingError(f"unknown task '{task}': expected {', '.join(known)}.{closest(task, known)}")
        if task not in known:
            raise SettingError(f"the preset {name} has no task '{task}': expected {', '.join(known)}.")
    return PRESETS[name]


def run_config(size: Table1Preset, task: str, structure: str, seed: int) -> RunConfig:
    """The settings of one cell. Some tasks have a first block with a pattern of its own."""
    structure = pattern(structure).spelling  # one, however it is written
    rule = f"softmax:gate={size.gates[structure]}" if structure in size.gates else "softmax"
    model = dataclasses.replace(size.model, pattern=structure, rule=rule)
    if task in size.first_blocks:
        model = dataclasses.replace(model, pattern=(size.first_blocks[task], structure), rule=("softmax", rule))
    curriculum = size.curricula.get(task, size.train.curriculum)
    train = dataclasses.replace(size.train, seed=seed, curriculum=curriculum)
    return RunConfig(model, size.tasks[task], train)

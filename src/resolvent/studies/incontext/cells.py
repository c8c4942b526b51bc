"""What is run: structures behind a `local:2` block on documents with a Markov chain each, at several budgets."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path

from resolvent.errors import SettingError, closest
from resolvent.model.config import ModelConfig
from resolvent.patterns import PAPER_STRUCTURES, pattern
from resolvent.studies.grid import Cell, folder_of, slug
from resolvent.studies.language.presets import with_parameters_of
from resolvent.tasks import Markov
from resolvent.train.config import RunConfig, TrainConfig

FIRST = "local:2"  # the pattern of the first block: a token and the one before it, so that the second can look pairs up
K = 16  # tokens of a chain
_LARGEST = "dense"  # the structure with the most parameters, which the others are given
_TOKENS_PER_STEP = 4096
_CHOSEN_ON, _PUBLISHED_ON = 200, 300  # first seeds
_SWEEP = (5e-3, 1e-2, 2.5e-3, 2e-2)
_MODEL = ModelConfig(layers=2, dim=64, heads=4)
_TRAIN = TrainConfig(warmup=25, beta_2=0.95, eval_batches=64, log_every=25, solved=None, spike=10.0)

# Learning rates by structure, each with the least loss of _SWEEP on seed 200 after 500 steps on 256 tokens: from
# `--preset rates` (docs/records/incontext-rates.jsonl), for each structure by itself. Other sizes of `binomial` and
# `order` take that of the nearest size; what was not swept takes _OTHERS, the rate at which attention was first seen to
# use its context, on seed 100.
RATES = {
    "attention": 1e-2, "local:8": 2.5e-3, "first-order": 5e-3, "order:8": 2.5e-3, "dense": 1e-2, "exponential": 5e-3,
    "exponential+cache": 5e-3, "quadratic": 5e-3, "quadratic+cache": 1e-2, "binomial:8": 5e-3, "binomial:8,lazy": 5e-3,
    "binomial:15": 2.5e-3, "binomial:15,lazy": 5e-3, "order:15": 5e-3,
}  # fmt: skip
_OTHERS = 5e-3
_EVERY_CLASS = ("attention", "first-order", "exponential", "exponential+cache", "quadratic", "quadratic+cache")
_FEW = ("attention", "first-order", "exponential+cache", "quadratic", "dense")
_SIZE = re.compile(r"(?<=:)\d+")


@dataclass(frozen=True)
class Arm:
    """A budget: steps of 4,096 tokens, documents of `context` tokens, and the first block's pattern, if it has its own.

    k              tokens that chains walk on: k² pairs are to be counted
    learning_rate  of all structures; None for that of each
    """

    steps: int = 500
    context: int = 256
    first: str | None = FIRST
    k: int = K
    learning_rate: float | None = None

    @property
    def name(self) -> str:
        """Of its folder."""
        alone = "" if self.first else "-alone"
        tokens = "" if self.k == K else f"-k{self.k}"
        rate = "" if self.learning_rate is None else f"-rate{self.learning_rate:g}"
        return f"context{self.context}-steps{self.steps}{alone}{tokens}{rate}"


def structures_of(context: int) -> tuple[str, ...]:
    """The paper's nine; and with the caches of its cache-efficient ones, those with the fewest hops, and bands.

    >>> structures_of(256)[9:]
    ('binomial:8', 'binomial:8,lazy', 'binomial:15', 'binomial:15,lazy', 'order:15')
    """
    sizes = [pattern(name).slots(context) for name in ("exponential+cache", "quadratic+cache")]
    fewest = [f"binomial:{size}{lazy}" for size in sizes for lazy in ("", ",lazy")]
    return tuple(dict.fromkeys([*PAPER_STRUCTURES, *fewest, *(f"order:{size}" for size in sizes)]))


def main_structures_of(context: int) -> tuple[str, ...]:
    """Every class of reads, with every position kept and with few; with the cache of k²+1, the fewest hops and a band.

    >>> main_structures_of(256)[-2:]
    ('binomial:15,lazy', 'order:15')
    """
    size = pattern("quadratic+cache").slots(context)
    return (*_EVERY_CLASS, "dense", f"binomial:{size},lazy", f"order:{size}")


@dataclass(frozen=True)
class InContextPreset:
    """A size of the study: every arm on every structure and seed.

    structures  by the length of documents
    together    other presets, whose runs it has
    """

    about: str
    arms: tuple[Arm, ...]
    structures: Callable[[int], tuple[str, ...]] = structures_of
    seeds: int = 5
    first_seed: int = _PUBLISHED_ON
    together: tuple[str, ...] = ()


PRESETS: dict[str, InContextPreset] = {
    "quick": InContextPreset(
        "nine structures and a binomial one, two seeds, 500 steps: 12 minutes on two cores",
        (Arm(),),
        lambda _: (*PAPER_STRUCTURES, "binomial:15,lazy"),
        seeds=2,
    ),
    "demo": InContextPreset(
        "five structures, one seed, 300 steps: three minutes on two cores", (Arm(300),), lambda _: _FEW, seeds=1
    ),
    "full": InContextPreset("14 structures, five seeds, 500 steps: 70 minutes of one core", (Arm(),)),
    "steps2000": InContextPreset(
        "nine structures, five seeds, 2,000 steps: 2.2 hours of one core", (Arm(2000),), main_structures_of
    ),
    "steps8000": InContextPreset(
        "five structures, two seeds, 8,000 steps: 3 hours of one core", (Arm(8000),), lambda _: _FEW, seeds=2
    ),
    # Longer documents, and stacks that have to find the look-up by themselves: after 500 steps attention is still on
    # the plateau (docs/log.md).
    "context512": InContextPreset(
        "as steps2000, on documents of 512: two hours of one core", (Arm(2000, context=512),), main_structures_of
    ),
    "context1024": InContextPreset(
        "as steps2000, on documents of 1,024: 2.4 hours of one core", (Arm(2000, context=1024),), main_structures_of
    ),
    "alone": InContextPreset(
        "as steps2000, with the structure in both blocks: 2.2 hours of one core",
        (Arm(2000, first=None),),
        main_structures_of,
    ),
    "tables": InContextPreset(
        "six structures, five seeds, chains on 4 and 8 tokens instead of 16: an hour of one core",
        (Arm(k=4), Arm(k=8)),
        lambda _: _EVERY_CLASS,
    ),
    "rates": InContextPreset(
        "learning rates from 0.0025 to 0.02 on a seed of their own: an hour of one core",
        tuple(Arm(learning_rate=rate) for rate in _SWEEP),
        seeds=1,
        first_seed=_CHOSEN_ON,
    ),
}
_TOGETHER = ("full", "steps2000", "steps8000", "context512", "context1024", "alone", "tables")
PRESETS["all"] = InContextPreset(f"{', '.join(_TOGETHER)}: side by side", (), together=_TOGETHER)


def cells(
    preset: str,
    out: Path,
    *,
    structures: Sequence[str] | None = None,
    seeds: int | None = None,
    first_seed: int | None = None,
    changes: Sequence[str] = (),
) -> list[Cell]:
    """Every run, seed by seed, so that a study that is stopped has complete comparisons."""
    size = preset_of(preset)
    first = size.first_seed if first_seed is None else first_seed
    own = [
        Cell(
            f"{Markov.name} {arm.name}",
            str(pattern(structure)),
            seed,
            run_config(arm, structure, seed).changed(changes),
            folder_of(out / "runs" / slug(arm.name), structure) / f"seed{seed}",
        )
        for arm in size.arms
        for seed in range(first, first + (seeds or size.seeds))
        for structure in structures or size.structures(arm.context)
    ]
    others = (
        cells(name, out, structures=structures, seeds=seeds, first_seed=first_seed, changes=changes)
        for name in size.together
    )
    return [*own, *chain.from_iterable(others)]


def preset_of(name: str) -> InContextPreset:
    """The preset of this name."""
    if name not in PRESETS:
        raise SettingError(
            f"unknown preset '{name}' of incontext: expected {', '.join(PRESETS)}.{closest(name, PRESETS)}"
        )
    return PRESETS[name]


def run_config(arm: Arm, structure: str, seed: int) -> RunConfig:
    """The settings of one cell: as many parameters as the largest structure has, in wider MLPs."""
    spelling = pattern(structure).spelling  # one, however it is written
    rate = rate_of(spelling) if arm.learning_rate is None else arm.learning_rate
    train = dataclasses.replace(
        _TRAIN, steps=arm.steps, batch=max(_TOKENS_PER_STEP // arm.context, 1), learning_rate=rate, seed=seed,
        eval_every=max(arm.steps // 10, 1), checkpoint_every=100,
    )  # fmt: skip
    return RunConfig(_matched(spelling, arm.first, arm.k), Markov(k=arm.k, context=arm.context), train)


def rate_of(structure: str) -> float:
    """The learning rate chosen for a structure, or for the one of its kind that is nearest in size."""
    if structure in RATES:
        return RATES[structure]
    kin = [name for name in RATES if _SIZE.sub("", name) == _SIZE.sub("", structure) and _SIZE.search(name)]
    return RATES[min(kin, key=lambda name: abs(_size(name) - _size(structure)))] if kin else _OTHERS


def _size(structure: str) -> int:
    size = _SIZE.search(structure)
    return int(size[0]) if size else 0


@lru_cache(maxsize=256)
def _matched(structure: str, first: str | None, k: int) -> ModelConfig:
    largest, own = (_config(name, first, k) for name in (_LARGEST, structure))
    return own.model if structure == _LARGEST else with_parameters_of(own, largest).model


def _config(structure: str, first: str | None, k: int) -> RunConfig:
    model = dataclasses.replace(_MODEL, vocab_size=k, pattern=structure if first is None else (first, structure))
    return RunConfig(model, Markov(k=k), _TRAIN)

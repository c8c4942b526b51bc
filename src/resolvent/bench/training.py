"""Steps of training: forward, loss, backward and AdamW of whole models, in turns; and the memory a step takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from resolvent.bench.gpt2 import NAME, Gpt2
from resolvent.bench.machine import measure_machine
from resolvent.bench.measure import frugal_allocator, in_turns, peak_bytes
from resolvent.bench.peers import UnavailableError, require_bytes
from resolvent.bench.record import BenchRecord, Machine, Measurement, Missing
from resolvent.errors import SettingError, is_integer
from resolvent.model import LanguageModel, ModelConfig, preset
from resolvent.patterns import Pattern, pattern
from resolvent.patterns.checks import require_length

ATTENTION = "attention"  # the peer that always runs: the same model on torch's fused attention
_ACTIVATIONS = 30  # numbers per channel, token and layer that a step keeps, about; logits come three times


@dataclass(frozen=True)
class Trainee:
    """A model with its optimizer. `step` takes tokens (B, n + 1); `madds` is of a token's forward pass, by length."""

    name: str
    parameters: int
    step: Callable[[Tensor], None]
    madds: Callable[[int], float]
    logits: int  # of a token that exist at once
    peer: bool = False


def training(model: nn.Module, loss: Callable[[Tensor], Tensor]) -> Callable[[Tensor], None]:
    """Forward, loss, backward and AdamW, as a function of the tokens."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step(tokens: Tensor) -> None:
        loss(tokens).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def loss_of(model: LanguageModel, tokens: Tensor) -> Tensor:
    """Of predicting all but the first of the tokens (B, n + 1)."""
    return model.loss(tokens[:, :-1], tokens[:, 1:])


def random_tokens(vocab_size: int, batch: int, n: int, seed: int = 0) -> Tensor:
    return torch.randint(vocab_size, (batch, n + 1), generator=torch.Generator().manual_seed(seed))


def bench_training(
    name: str,
    patterns: Sequence[Pattern],
    lengths: Sequence[int],
    *,
    batch: int = 1,
    rounds: int = 5,
    against: bool = True,
    after_each: Callable[[], None] = lambda: None,
) -> BenchRecord:
    """Time and peak memory of a step of a preset on sequences of n tokens, for each pattern, attention and GPT-2.

    Memory is measured first, apart from the timings: the allocator is told to be frugal, which takes time. `after_each`
    is called rounds + 1 times for each length. Without `against`, or without transformers, no GPT-2.
    """
    for what, count in (("batch", batch), ("rounds", rounds)):
        if not is_integer(count) or count < 1:
            raise SettingError(f"expected {what} to be an integer ≥ 1, got {count!r}.")
    sizes = sorted({require_length(n) for n in lengths})
    if not sizes:
        raise SettingError("expected at least one length n, got none.")
    shapes = [preset(name, pattern=p) for p in dict.fromkeys([pattern(ATTENTION), *patterns])]
    with frugal_allocator():
        trainees, missing = _trainees(shapes, max(sizes), against)
        fitting: dict[int, list[Trainee]] = {}
        for n in sizes:
            fitting[n], left_out = _that_fit(trainees, shapes[0], batch, n)
            missing += left_out
        held = {
            (trainee.name, n): _peak(trainee, shapes[0].vocab_size, batch, n) for n in sizes for trainee in fitting[n]
        }
    limits, measured = measure_machine(), list[Measurement]()
    for n in sizes:
        tokens = random_tokens(shapes[0].vocab_size, batch, n)
        runs = {trainee.name: partial(trainee.step, tokens) for trainee in fitting[n]}
        taken = in_turns(runs, rounds, after_each)
        for trainee in fitting[n]:
            least = _least_seconds(trainee, batch, n, limits)
            one = Measurement.of(
                taken[trainee.name],
                trainee.name,
                f"batch {batch}",
                n,
                batch * n,
                peer=trainee.peer,
                parameters=trainee.parameters,
                peak_bytes=held[trainee.name, n],
            )
            measured.append(replace(one, share=least / one.seconds))
    return BenchRecord.new("training", name, rounds, torch.get_num_threads(), limits, measured, missing)


def _trainees(shapes: Sequence[ModelConfig], longest: int, against: bool) -> tuple[list[Trainee], list[Missing]]:
    trainees, missing = [], []
    for config in shapes:
        model = LanguageModel.seeded(config, 0)
        label, madds = config.pattern_label, partial(_madds, model)
        step = training(model, partial(loss_of, model))
        trainees.append(Trainee(label, model.parameter_count(), step, madds, 0, peer=label == ATTENTION))
    if against:
        try:
            gpt2 = Gpt2(shapes[0], longest)
        except ImportError as error:
            missing.append(Missing(NAME, str(error).rstrip(".")))
        else:
            gpt2.model.train()
            own = Trainee(NAME, gpt2.parameters, training(gpt2.model, gpt2.loss), trainees[0].madds,
                          shapes[0].vocab_size, peer=True)  # fmt: skip
            trainees.insert(1, own)
    return trainees, missing


def _that_fit(
    trainees: Sequence[Trainee], config: ModelConfig, batch: int, n: int
) -> tuple[list[Trainee], list[Missing]]:
    """Those whose step fits into memory, by a rough estimate."""
    fitting, missing = [], []
    for trainee in trainees:
        numbers = _ACTIVATIONS * config.layers * config.dim + 3 * trainee.logits
        try:
            require_bytes(4 * batch * n * numbers, "a training step")
        except UnavailableError as error:
            missing.append(Missing(trainee.name, f"on {n:,} tokens: {error}"))
        else:
            fitting.append(trainee)
    if not fitting:
        raise SettingError(f"expected a length whose training step fits into memory, got {n:,}: {missing[0].reason}.")
    return fitting, missing


def _peak(trainee: Trainee, vocab_size: int, batch: int, n: int) -> int | None:
    """Of the second step: the first compiles, and makes the optimizer's state."""
    tokens = random_tokens(vocab_size, batch, n)
    trainee.step(tokens)
    return peak_bytes(partial(trainee.step, tokens))


def _madds(model: LanguageModel, n: int) -> float:
    return model.profile(n).madds_per_token


def _least_seconds(trainee: Trainee, batch: int, n: int, limits: Machine) -> float:
    """Two operations for each multiply-add, once forward and twice backward, at the speed of matrix products."""
    return 6 * trainee.madds(n) * batch * n / (1e9 * limits.matmul_gflops)

"""Generation from end to end: whole models, one token at a time, greedily, against GPT-2 of transformers in turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, final

import torch
from torch import Tensor

from resolvent.analysis.cost import cost
from resolvent.bench.decode import fill_randomly
from resolvent.bench.gpt2 import NAME, Gpt2
from resolvent.bench.machine import measure_machine
from resolvent.bench.measure import in_turns
from resolvent.bench.peers import memory_limit
from resolvent.bench.record import CALL, BenchRecord, Machine, Measurement, Missing
from resolvent.errors import SettingError, is_integer
from resolvent.model import LanguageModel, preset
from resolvent.patterns import Pattern
from resolvent.patterns.checks import require_length

LONGEST_PROMPT = 256  # up to which calls of `generate` are timed, which read the prompt, too
_CALL_TOKENS = 4  # times as many tokens as a round has: a call that is worth its beginning
_OUT_OF_CACHE = 64 * 2**20  # bytes of weights, from which on each token loads them from memory


class GeneratingModel(Protocol):
    """A model that generates, ours or a peer's."""

    name: str
    parameters: int
    peer: bool

    def cache_bytes(self, batch: int, tokens: int) -> int:
        """Of so many sequences of so many tokens."""

    def loaded_bytes(self, batch: int, n: int) -> int:
        """What one more token after n loads at least: every weight once, and of each cache what is read."""

    def decoder(self, lengths: Sequence[int], most: int) -> Callable[[], object]:
        """A step of greedy decoding, after random pasts of these lengths; none becomes longer than `most`."""

    def call(self, prompt: Tensor, tokens: int) -> object:
        """Generate greedily after a prompt (1, n), which is read first."""


@final
class Ours:
    """A language model with one of our patterns."""

    peer = False

    def __init__(self, name: str, p: Pattern) -> None:
        self.pattern, self.model = p, LanguageModel.seeded(preset(name, pattern=p), 0).eval()
        self.name, self.parameters = self.model.config.pattern_label, self.model.parameter_count()

    def cache_bytes(self, batch: int, tokens: int) -> int:
        return self.model.make_cache(batch, tokens, device="meta").nbytes

    def loaded_bytes(self, batch: int, n: int) -> int:
        """Each number that is read of a cache is multiplied once: multiply-adds count them."""
        config = self.model.config
        layer = cost(self.pattern, n + 1, heads=config.heads, head_dim=config.dim // config.heads)
        return 4 * (self.parameters + batch * config.layers * layer.decode_madds_last_token)

    def decoder(self, lengths: Sequence[int], most: int) -> Callable[[], object]:
        cache = self.model.make_cache(len(lengths), most)
        fill_randomly(cache, lengths)
        tokens = torch.zeros(len(lengths), 1, dtype=torch.long)

        def step() -> Tensor:
            nonlocal tokens
            logits, _ = self.model.extend(tokens, cache, last_only=True)
            tokens = logits[:, -1].argmax(-1, keepdim=True)
            return tokens

        return step

    def call(self, prompt: Tensor, tokens: int) -> object:
        return self.model.generate(prompt, tokens, temperature=0.0)


@final
class Theirs:
    """GPT-2 of transformers with one of its caches: the dynamic one copies itself at each step, the static one does
    not, and attends over all that it has room for.
    """

    peer = True

    def __init__(self, gpt2: Gpt2, *, static: bool) -> None:
        self.gpt2, self.static, self.parameters = gpt2, static, gpt2.parameters
        self.name = f"{NAME}, {'static' if static else 'dynamic'}"

    def cache_bytes(self, batch: int, tokens: int) -> int:
        return self.gpt2.cache_bytes(batch, tokens)

    def loaded_bytes(self, batch: int, n: int) -> int:
        return 4 * self.parameters + self.gpt2.cache_bytes(batch, n)

    def decoder(self, lengths: Sequence[int], most: int) -> Callable[[], object]:
        return self.gpt2.decoder(lengths, most, static=self.static).step

    def call(self, prompt: Tensor, tokens: int) -> object:
        return self.gpt2.generate(prompt, tokens, static=self.static)


@dataclass(frozen=True)
class Workload:
    """So many sequences at once, of one length or, if ragged, of lengths from half of it to all of it."""

    name: str
    batch: int
    ragged: bool = False

    def lengths(self, n: int) -> list[int]:
        if not self.ragged:
            return [n] * self.batch
        least = (n + 1) // 2
        return [least + (n - least) * b // (self.batch - 1) for b in range(self.batch)]


def workloads(batches: Sequence[int], lengths: Sequence[int]) -> list[tuple[Workload, int]]:
    """What is timed, and after how many tokens."""
    kinds = [Workload(CALL, 1)]
    for batch in dict.fromkeys(batches):
        kinds.append(Workload(f"batch {batch}", batch))
        if batch > 1:
            kinds.append(Workload(f"batch {batch}, ragged", batch, ragged=True))
    sizes = sorted({require_length(n) for n in lengths})
    return [(kind, n) for kind in kinds for n in sizes if kind.name != CALL or n <= LONGEST_PROMPT]


def bench_generation(
    name: str,
    patterns: Sequence[Pattern],
    lengths: Sequence[int],
    *,
    batches: Sequence[int] = (1, 8),
    tokens: int = 8,
    rounds: int = 5,
    against: bool = True,
    after_each: Callable[[], None] = lambda: None,
) -> BenchRecord:
    """Time per token of a preset with each pattern after so many tokens, and of GPT-2 with both of its caches.

    Caches hold random numbers: reading long prompts would take longer than all else. `generate()` reads its prompt,
    and is timed where that is short. In each round every case makes `tokens` tokens, and goes on from there in the
    next; `after_each` is called rounds + 1 times for each of `workloads`. Without `against`, there is no GPT-2.
    """
    for what, count in (("tokens", tokens), ("rounds", rounds), *(("batches", batch) for batch in batches)):
        if not is_integer(count) or count < 1:
            raise SettingError(f"expected {what} to be integers ≥ 1, got {count!r}.")
    chosen = workloads(batches, lengths)
    if not chosen or not patterns:
        raise SettingError("expected at least one pattern, one length and one batch size, got none.")
    models: list[GeneratingModel] = []
    if against:
        most = max(n for _, n in chosen) + max(rounds + 1, _CALL_TOKENS) * tokens
        gpt2 = Gpt2(preset(name), most)
        models += [Theirs(gpt2, static=static) for static in (False, True)]
    models += [Ours(name, p) for p in dict.fromkeys(patterns)]
    limits, measured, missing = measure_machine(), list[Measurement](), list[Missing]()
    for workload, n in chosen:
        count = _CALL_TOKENS * tokens if workload.name == CALL else tokens
        most = n + count * (1 if workload.name == CALL else rounds + 1)
        fitting, left_out = _that_fit(models, workload, n, most)
        with torch.no_grad():
            runs = {model.name: _run(model, workload, n, count, most) for model in fitting}
            taken = in_turns(runs, rounds, after_each)
        del runs  # and their caches, before the next ones are made
        missing += left_out
        for model in fitting:
            times = [each / count for each in taken[model.name]]
            measured.append(_measurement(model, times, workload, n, most, limits))
    return BenchRecord.new("generate", name, rounds, torch.get_num_threads(), limits, measured, missing)


def _that_fit(
    models: Sequence[GeneratingModel], workload: Workload, n: int, most: int
) -> tuple[list[GeneratingModel], list[Missing]]:
    """Those whose caches fit into memory together."""
    fitting, missing, held, limit = list[GeneratingModel](), list[Missing](), 0, memory_limit()
    for model in models:
        needed = model.cache_bytes(workload.batch, most)
        if held + needed > limit:
            reason = f"{workload.name} after {n:,}: caches would take more than {limit / 2**30:.1f} GiB together"
            missing.append(Missing(model.name, reason))
        else:
            fitting.append(model)
            held += needed
    if not fitting:
        raise SettingError(f"no cache for {workload.name} after {n:,} tokens fits into memory: choose a shorter one.")
    return fitting, missing


def _run(model: GeneratingModel, workload: Workload, n: int, tokens: int, most: int) -> Callable[[], object]:
    if workload.name == CALL:
        return partial(model.call, _prompt(n), tokens)
    step = model.decoder(workload.lengths(n), most)

    def steps() -> None:
        for _ in range(tokens):
            step()

    return steps


def _measurement(
    model: GeneratingModel, times: Sequence[float], workload: Workload, n: int, most: int, limits: Machine
) -> Measurement:
    measured = Measurement.of(
        times,
        model.name,
        workload.name,
        n,
        workload.batch,
        peer=model.peer,
        parameters=model.parameters,
        cache_bytes=model.cache_bytes(workload.batch, most),
    )
    if 4 * model.parameters < _OUT_OF_CACHE or workload.name == CALL:
        return measured
    least = model.loaded_bytes(workload.batch, n) / (1e9 * limits.dram_gbs)
    return replace(measured, share=least / measured.seconds)


def _prompt(n: int) -> Tensor:
    return torch.arange(n)[None] % 97

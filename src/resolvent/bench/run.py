"""The benchmark: for each length, all cases take turns; with memory and bounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from resolvent.bench.machine import measure_machine
from resolvent.bench.measure import frugal_allocator, in_turns, peak_bytes
from resolvent.bench.peers import Case, Problem, UnavailableError, make_case, ours
from resolvent.bench.record import PASSES, PEERS, PER_PATTERN, BenchRecord, Machine, Measurement, Missing, Pass
from resolvent.errors import PatternError, closest, is_integer
from resolvent.patterns import Pattern
from resolvent.patterns.checks import require_length

# Backward against forward: a backward sweep loads what the forward did, to recompute the weights, and reads and adds to
# as many gradients; five products of matrices against the forward's two.
_LOADS, _FLOPS = 3.0, 3.5


def bench(
    patterns: Sequence[Pattern],
    n: int | Sequence[int],
    *,
    peers: Sequence[str] = ("sdpa",),
    batch: int = 1,
    heads: int = 12,
    head_dim: int = 64,
    rounds: int = 7,
    backend: str = "auto",
    memory: bool = False,
    after_each: Callable[[], None] = lambda: None,
) -> BenchRecord:
    """Forward, and forward with backward, of each pattern and peer, interleaved, at one length or several.

    Where a peer depends on the pattern (flex, scipy), each pattern has its own. `memory` measures peak memory, too.
    `after_each` is called rounds + 1 times per length. A peer that cannot run is reported as missing, with the reason.
    """
    sizes = sorted({require_length(size) for size in (n if isinstance(n, Sequence) else [n])})
    _check(sizes, peers, batch=batch, heads=heads, head_dim=head_dim, rounds=rounds)
    held = _memory(sizes, batch, heads, head_dim, patterns, peers, backend) if memory else {}
    limits, measured, missing = measure_machine(), list[Measurement](), list[Missing]()
    for size in sizes:
        problem = Problem(size, batch, heads, head_dim)
        cases, left_out = _cases(problem, patterns, peers, backend)
        runs: dict[tuple[Pass, str], Callable[[], object]] = {}
        for case in cases:
            runs["forward", case.name] = torch.no_grad()(case.run)
            if case.inputs:
                runs["both", case.name] = partial(gradients, case, problem.weights)
        taken = in_turns(runs, rounds, after_each)
        for which in PASSES:
            for case in cases:
                if (which, case.name) in taken:
                    times, peak = taken[which, case.name], held.get((size, case.name))
                    measured.append(_measurement(case, which, times, batch * size, size, limits, peak))
        missing += [replace(case, reason=f"{size:,} tokens: {case.reason}") for case in left_out]
    shape = f"batch {batch}, {heads} heads of {head_dim}, float32"
    return BenchRecord.new("operator", shape, rounds, torch.get_num_threads(), limits, measured, missing)


def gradients(case: Case, weights: Tensor) -> tuple[Tensor, ...]:
    """Forward and backward."""
    return torch.autograd.grad(case.run(), case.inputs, weights, allow_unused=True)


def use_threads(threads: int | None) -> None:
    """Let torch, and with it our kernels, use this many threads; as many as torch likes if None."""
    if threads is not None and threads < 1:
        raise PatternError(f"expected at least one thread, got {threads}.")
    if threads is not None:
        torch.set_num_threads(threads)


def _check(sizes: list[int], peers: Sequence[str], **counts: int) -> None:
    if not sizes:
        raise PatternError("expected at least one length n, got none.")
    unknown = [peer for peer in peers if peer not in PEERS]
    if unknown:
        hint = closest(unknown[0], PEERS)
        raise PatternError(f"expected peers among {', '.join(PEERS)}, got {', '.join(peers)}.{hint}")
    for name, count in counts.items():
        if not is_integer(count) or count < 1:
            raise PatternError(f"expected {name} to be an integer ≥ 1, got {count!r}.")


def _cases(
    problem: Problem, patterns: Sequence[Pattern], peers: Sequence[str], backend: str
) -> tuple[list[Case], list[Missing]]:
    cases, missing = [], []
    for peer in dict.fromkeys(peers):
        for p in dict.fromkeys(patterns) if peer in PER_PATTERN else [None]:
            try:
                cases.append(make_case(peer, problem, p))
            except UnavailableError as error:
                missing.append(Missing(f"{peer} {p}" if p else peer, str(error)))
    return cases + [ours(problem, p, backend) for p in dict.fromkeys(patterns)], missing


def _measurement(
    case: Case, which: Pass, times: list[float], tokens: int, n: int, limits: Machine, peak: int | None
) -> Measurement:
    """With the share of its bound: what a backward pass adds to the forward's work depends on the bound."""
    made = Measurement.of(
        [case.repeats * each for each in times], case.name, PASSES[which], n, tokens, peer=case.peer is not None
    )
    if case.bound is None:
        return made
    speed, backward = {"loads": (limits.l2_gbs, _LOADS), "matmul": (limits.matmul_gflops, _FLOPS)}[case.bound]
    least = case.work * (backward if which == "both" else 1) / (1e9 * speed)
    return replace(made, share=least / made.seconds, peak_bytes=peak if which == "both" else None)


def _memory(
    sizes: list[int],
    batch: int,
    heads: int,
    head_dim: int,
    patterns: Sequence[Pattern],
    peers: Sequence[str],
    backend: str,
) -> dict[tuple[int, str], int | None]:
    """Bytes of peak memory of forward with backward beyond the inputs, by length and case.

    Before and apart from the timings, since the allocator is told to be frugal, which takes time.
    """
    held = {}
    with frugal_allocator():
        for n in sizes:
            problem = Problem(n, batch, heads, head_dim)
            cases, _ = _cases(problem, patterns, [peer for peer in peers if peer not in PER_PATTERN], backend)
            for case in cases:
                run = partial(gradients, case, problem.weights)
                run()  # warms up
                held[n, case.name] = peak_bytes(run)
    return held

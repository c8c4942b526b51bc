"""The benchmark: for each length, all cases take turns; then memory, bounds and growth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from resolvent.bench.machine import measure_machine
from resolvent.bench.measure import Seconds, frugal_allocator, gradients, peak_bytes, take_turns
from resolvent.bench.peers import PEERS, PER_PATTERN, Case, Problem, UnavailableError, make_case, ours
from resolvent.bench.record import Machine, Missing
from resolvent.bench.results import Length, Report, growth, timing
from resolvent.errors import PatternError, closest, is_integer
from resolvent.patterns import Pattern
from resolvent.patterns.checks import require_length


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
) -> Report:
    """Forward, and forward with backward, of each pattern and peer, interleaved, at one length or several.

    The first peer, if any, is the yardstick; where it depends on the pattern (flex, scipy), each pattern has its own.
    `memory` measures peak memory, too. `after_each` is called rounds + 1 times per length. A peer that cannot run is
    reported as missing, with the reason.
    """
    sizes = sorted({require_length(size) for size in (n if isinstance(n, Sequence) else [n])})
    _check(sizes, peers, batch=batch, heads=heads, head_dim=head_dim, rounds=rounds)
    held = _memory(sizes, batch, heads, head_dim, patterns, peers, backend) if memory else {}
    machine, yardstick = measure_machine(), peers[0] if peers else "none"
    lengths = []
    for size in sizes:
        problem = Problem(size, batch, heads, head_dim)
        cases, missing = _cases(problem, patterns, peers, backend)
        seconds = take_turns(cases, problem.weights, rounds, after_each)
        lengths.append(_length(size, cases, missing, seconds, held, yardstick, machine))
    return Report(
        batch=batch,
        heads=heads,
        head_dim=head_dim,
        dtype="float32",
        backend=backend,
        threads=torch.get_num_threads(),
        rounds=rounds,
        torch_version=torch.__version__,
        yardstick=yardstick,
        machine=machine,
        lengths=lengths,
        growth=growth(lengths),
    )


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


def _length(
    n: int,
    cases: list[Case],
    missing: list[Missing],
    seconds: dict[str, Seconds],
    held: dict[tuple[int, str], float | None],
    yardstick: str,
    machine: Machine,
) -> Length:
    timings = []
    for case in cases:
        name = f"{yardstick} {case.pattern}" if yardstick in PER_PATTERN else yardstick
        timings.append(timing(case, seconds[case.name], seconds.get(name), machine, held.get((n, case.name))))
    return Length(n, timings, missing)


def _memory(
    sizes: list[int],
    batch: int,
    heads: int,
    head_dim: int,
    patterns: Sequence[Pattern],
    peers: Sequence[str],
    backend: str,
) -> dict[tuple[int, str], float | None]:
    """Peak memory of forward with backward beyond the inputs, in multiples of x, by length and case.

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
                taken = peak_bytes(run)
                held[n, case.name] = None if taken is None else taken / problem.x.nbytes
    return held

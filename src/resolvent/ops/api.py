"""The public operations. Arguments are checked here, once, and handed to a backend."""

from __future__ import annotations

import torch
from torch import Tensor

from resolvent.ops import joint, tracing
from resolvent.ops.backend import Backend, Operation
from resolvent.ops.cache.base import Cache
from resolvent.ops.cache.extend import advance
from resolvent.ops.cache.slots import DecodeCache
from resolvent.ops.cache.stages import check_cache_dtype, check_cache_fits, stage_caches
from resolvent.ops.call import Call, Options, as_operated, call_of, check_traceable, traced_spellings
from resolvent.ops.inputs import (
    Inputs,
    QueriesAndKeys,
    Scores,
    check_alike,
    check_rank,
    check_shape,
    checked_inputs,
    repeat_heads,
)
from resolvent.ops.precision import without_autocast
from resolvent.ops.registry import Choice, choose, registered_name
from resolvent.ops.rows import rows_of
from resolvent.ops.sequences import Indices, Sequences, checked_sequences, from_front, to_front, zero_padding
from resolvent.ops.stages import Runner, through_pair
from resolvent.ops.tied import by_token, untie
from resolvent.patterns import Normalize, PatternLike, as_pattern


def mix(
    x: Tensor,
    pattern: PatternLike,
    a: QueriesAndKeys | None = None,
    b: QueriesAndKeys | None = None,
    gate: Tensor | float | None = None,
    *,
    scale: float | None = None,
    normalize: Normalize = "gate",
    tied: Tensor | float | None = None,
    cu_seqlens: Indices | None = None,
    start: Indices | None = None,
    backend: str | Backend = "auto",
) -> Tensor:
    """Mix tokens: y = (I - B)^-1 A x with A = (1 - g) softmax(qa·ka) and B = g softmax(qb·kb) on the pattern.

    A pair of patterns "A/B" has positions of its own for each matrix; nothing else changes.

    What the pattern does not use may be left out: `b` and `gate` without feedback (attention, local), `a` where A is
    diagonal, `b` where no token reads more than one other (first-order): a softmax over one entry is 1.

    Grouped queries: x and the keys may have fewer heads, G, than queries and gate have, H = G × an integer; head h of
    the queries then uses head h // (H / G) of the others, and y has H heads.

    Sums run in an order of their own on each backend. The `cpu` backend gives the same bits whatever the number of
    threads; the others do so for a fixed number of threads, since torch's matrix products depend on it.

    No output depends on later inputs. One exception: the backends that use matrix products, `dense` (chosen for
    `attention` and long `dense` patterns), `torch` and `triton`, multiply later inputs by zero, so that a NaN or
    infinity among them may spoil earlier rows.

    Args:
        x: (B, H, N, D) values.
        pattern: a spelling such as "exponential+cache" or "local:8/exponential", a `Pattern`, or a function k ↦ stride.
        a: (queries, keys) of A, each (B, H, N, D').
        b: (queries, keys) of B, each (B, H, N, D').
        gate: g, the share of feedback: (B, H, N) in [0, 1], a number, or a tensor that broadcasts, such as (H, 1).
        scale: what scores are multiplied by [default: 1 / sqrt(D')].
        normalize: "gate" as above; "joint" runs one softmax over all of (I - B)^-1 A: direct scores compete with what
            feedback brings, weighed by g softmax(qb·kb) (docs/theory.md). Coefficients are then written out, n × W.
        tied: d ties the two matrices: A = B D + D' with D = diag(d) and rows of A + B that sum to one; a number, one
            per head, or one per token, (B, H, N). Then B_ij = (1 + d_i) g_i softmax(qb·kb)_ij / (1 + d_j), as above
            where d does not change along the sequence, and A ≥ 0 as long as d ≥ 0 and g_i ≤ 1 / (1 + d_i). Half the
            work, and `a` is not used (docs/theory.md). A and B must read the same positions: not for a pair.
        cu_seqlens: 0 and the ends of the sequences packed along N; none reads another, and each has its own lattice.
        start: (B,) where each sequence begins, after padding on the left; outputs before it are zero.
        backend: "auto", a name (see `choose_backend`), or a `Backend`.

    Returns:
        y: (B, H, N, D), of x's dtype.

    >>> x, q, k = torch.randn(3, 2, 4, 100, 16)
    >>> mix(x, "quadratic+cache", a=(q, k), b=(q, k), gate=0.5).shape
    torch.Size([2, 4, 100, 16])
    """
    check_rank("x", x, "(B, H, N, D)")
    sequences = checked_sequences(x.shape[0], x.shape[2], cu_seqlens, start)
    return operate(x, pattern, Scores(a, b, gate), Options(scale, normalize, tied, backend), sequences)


def extend(
    x: Tensor,
    pattern: PatternLike,
    cache: Cache,
    a: QueriesAndKeys | None = None,
    b: QueriesAndKeys | None = None,
    gate: Tensor | float | None = None,
    *,
    scale: float | None = None,
    normalize: Normalize = "gate",
    tied: Tensor | float | None = None,
    start: Indices | None = None,
    backend: str | Backend = "auto",
) -> Tensor:
    """`mix` on the next tokens of sequences whose past is in the cache, which is updated in place.

    Prefill, chunked prefill and decoding are this one operation, for any number of tokens: all splits of a sequence
    give what `mix` gives on all of it. Where gradients are asked for, they flow through the cache. `cache.clone()` is a
    state to come back to. Sequences may stand at different positions.

    `cache` is made by `decode_cache` for the same pattern and shapes; with grouped queries it needs `kv_heads`, the
    heads of x and keys. The other arguments are those of `mix`, for the new tokens alone; `start` skips padding on the
    left.

    Returns:
        y: (B, H, N, D), the outputs of the new tokens.

    >>> import resolvent as rv
    >>> x, q, k = torch.randn(3, 1, 4, 100, 16)
    >>> cache = rv.decode_cache("exponential+cache", batch=1, heads=4, dim=16, key_dim=16)
    >>> prefill = extend(x[:, :, :99], "exponential+cache", cache, a=(q[:, :, :99], k[:, :, :99]),
    ...                  b=(q[:, :, :99], k[:, :, :99]), gate=0.5)
    >>> last = slice(99, 100)
    >>> extend(x[:, :, last], "exponential+cache", cache, a=(q[:, :, last], k[:, :, last]),
    ...        b=(q[:, :, last], k[:, :, last]), gate=0.5).shape
    torch.Size([1, 4, 1, 16])
    """
    check_rank("x", x, "(B, H, N, D)")
    sequences = checked_sequences(x.shape[0], x.shape[2], None, start)
    options = Options(scale, normalize, tied, backend)
    call, inputs = _prepare(x, pattern, Scores(a, b, gate), options)
    check_cache_fits(cache, inputs, as_operated(pattern, tied is not None), normalize)
    starts = sequences.starts or (0,) * cache.batch
    ends = [seen + x.shape[2] - first for seen, first in zip(cache.positions.tolist(), starts, strict=True)]
    cache.reserve(max(ends, default=0))
    return _run(call, inputs, pattern, options, sequences, cache)


def solve(
    x: Tensor, pattern: PatternLike, alpha: Tensor, beta: Tensor | None = None, *, backend: str | Backend = "auto"
) -> Tensor:
    """Solve y = A x + B y, that is y = (I - B)^-1 A x, from explicit coefficients on a pattern.

    Args:
        x: (B, H, N, D).
        pattern: a spelling, a `Pattern`, or a function k ↦ stride.
        alpha: (B, H, N, 1 + W), column 0 for the token itself, then its sources, nearest first (`pattern.table(N)`);
            one column if A is diagonal.
        beta: (B, H, N, W), or None if the pattern has no feedback. The sources of a pair "A/B" are those of `pattern.a`
            for alpha, and those of `pattern.b` for beta.
        backend: as in `mix`.

    Returns:
        y: (B, H, N, D).

    >>> half = torch.full((1, 1, 8, 1), 0.5)
    >>> solve(torch.ones(1, 1, 8, 1), "first-order", half, half)[0, 0, :3, 0]
    tensor([0.5000, 0.7500, 0.8750])
    """
    chosen = as_pattern(pattern)
    check_rank("x", x, "(B, H, N, D)")
    n = x.shape[-2]
    first, last = (rows_of(stage, (0, n)) for stage in (chosen.stages[0], chosen.stages[-1]))
    columns = 1 + first.width if chosen.direct == "all" else 1
    check_shape("alpha", alpha, (*x.shape[:-1], columns), f"(B, H, N, {columns}) for {chosen} on {n} tokens")
    if chosen.recurrent and beta is None:
        raise ValueError(
            f"{chosen} feeds outputs back: expected beta of shape {(*x.shape[:-1], last.width)}, got None."
        )
    if not chosen.recurrent and beta is not None:
        raise ValueError(f"{chosen} has no feedback: expected beta=None, got a tensor of shape {tuple(beta.shape)}.")
    if beta is not None:
        check_shape("beta", beta, (*x.shape[:-1], last.width), f"(B, H, N, {last.width}) for {chosen} on {n} tokens")
    check_alike(x=x, alpha=alpha, beta=beta)
    *direct, final = (choose(backend, stage.request("solve", x))[0] for stage in call_of(pattern, "gate", False).stages)
    for runs in direct:  # a pair: y = A x, and then y = y + B y
        x, alpha = runs.solve(x, alpha, None, first), torch.ones_like(alpha[..., :1])
    return final.solve(x, alpha, beta, last)


def choose_backend(x: Tensor, pattern: PatternLike, *, normalize: Normalize = "gate") -> Choice:
    """Say what `backend="auto"` does with a tensor like this, (B, H, N, D), a pattern and `normalize`, and why.

    Returns:
        The name of the backend, and the reason.

    A and B of a pair may run on different ones: then both are named, as in "dense/cpu".

    >>> choose_backend(torch.zeros(1, 1, 64, 8), "exponential").backend
    'cpu'
    """
    requests = [stage.request("mix", x) for stage in call_of(pattern, normalize, False).stages]
    choices = [(backend.NAME, why) for backend, why in (choose("auto", request) for request in requests)]
    if len(set(choices)) == 1:
        return Choice(*choices[0])
    (a, why_a), (b, why_b) = choices
    return Choice(a if a == b else f"{a}/{b}", f"A: {why_a}; B: {why_b}")


def operate(
    x: Tensor, pattern: PatternLike, scores: Scores, options: Options, sequences: Sequences, cache: Cache | None = None
) -> Tensor:
    """What `mix` does and, with a cache that has room for the tokens, `extend`; layers check sequences themselves."""
    call, inputs = _prepare(x, pattern, scores, options)
    return _run(call, inputs, pattern, options, sequences, cache)


def _prepare(x: Tensor, pattern: PatternLike, scores: Scores, options: Options) -> tuple[Call, Inputs]:
    call = call_of(pattern, options.normalize, options.tied is not None)
    return call, checked_inputs(x, scores, call.needs, call.label)


def _run(
    call: Call, inputs: Inputs, pattern: PatternLike, options: Options, sequences: Sequences, cache: Cache | None
) -> Tensor:
    scale = options.scale_of(inputs)
    with without_autocast(inputs.x.device.type):  # it has had its say
        if cache is None:
            y = _mix(call, inputs.with_all_heads(), pattern, options, scale, sequences)
        else:
            y = _extend(call, inputs, stage_caches(cache), options, scale, sequences)
        if options.tied is None:
            return y
        x = zero_padding(repeat_heads(inputs.x, inputs.heads), sequences.starts)  # as y is there
        tied = by_token(options.tied, x)
        return untie(y, x, tied if tied.shape[2] == 1 else zero_padding(tied, sequences.starts))


def _mix(
    call: Call, inputs: Inputs, pattern: PatternLike, options: Options, scale: float, sequences: Sequences
) -> Tensor:
    """Sequences are moved to the front where they are padded. A traced graph holds spellings instead of patterns."""
    backends, tied = _backends(call, inputs, options, "mix"), options.tied is not None
    starts = None if sequences.starts is None else torch.tensor(sequences.starts, device=inputs.x.device)
    if starts is not None:
        x, qa, ka, qb, kb, gate = to_front((*inputs[:5], inputs.gate[..., None]), starts)
        inputs = Inputs(x, qa, ka, qb, kb, gate[..., 0])
    if torch.compiler.is_compiling():
        check_traceable(call)
        cuts = list(sequences.cuts)
        for spelling, backend in zip(traced_spellings(pattern, tied), backends, strict=True):
            inputs = inputs._replace(x=tracing.mix(inputs, spelling, cuts, scale, registered_name(backend)))
        y = inputs.x
    else:
        rows = [rows_of(stage, sequences.cuts) for stage in as_operated(pattern, tied).stages]

        def run(stage: int, own: Inputs, own_scale: float, runs: Runner) -> Tensor:
            if call.joint and not isinstance(runs, joint.DirectPart):
                return joint.mix(own, rows[stage], own_scale, runs)[0]
            return runs.mix(own, rows[stage], own_scale)

        if len(rows) == 1:
            y = run(0, inputs, scale, backends[0])
        else:
            y = through_pair(inputs, scale, backends, run, joint_softmax=call.joint)
    return y if starts is None else from_front(y, starts)


def _extend(
    call: Call, inputs: Inputs, caches: tuple[DecodeCache, ...], options: Options, scale: float, sequences: Sequences
) -> Tensor:
    backends = _backends(call, inputs, options, "extend")
    for cache in caches:
        check_cache_dtype(cache, inputs.x)
    if len(caches) == 1:  # a decoder waits for this
        return advance(inputs, caches[0], sequences.starts, scale, backends[0])

    def run(stage: int, own: Inputs, own_scale: float, runs: Runner) -> Tensor:
        return advance(own, caches[stage], sequences.starts, own_scale, runs)

    return through_pair(inputs, scale, backends, run, joint_softmax=call.joint)


def _backends(call: Call, inputs: Inputs, options: Options, operation: Operation) -> list[Backend]:
    return [choose(options.backend, stage.request(operation, inputs.x))[0] for stage in call.stages]

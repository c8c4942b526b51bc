"""Cost of a layer: multiply-adds and bytes per token, from the same integers as everything else.

Every non-zero of A or B costs one product of length D for its score and one for its share of the output. The backward
pass recomputes the scores (1), and needs the gradients of coefficient, value, query and key (4): five such products
against the forward's two. Rules with a state of their own (Mamba's, low-rank) cost what it takes to update and read it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from resolvent.analysis.coefficients import (
    DIGITS,
    Coefficients,
    Distance,
    Linear,
    LowRank,
    Mamba,
    Whole,
    as_run,
    coefficients,
    fit,
)
from resolvent.patterns import Pattern, PatternError
from resolvent.patterns.errors import is_integer, require_length

_BACKWARD = 2.5  # times the forward pass


@dataclass(frozen=True)
class Cost:
    """Per layer. Multiply-adds and bytes are means over the n tokens, except as named.

    `cache_bytes` is the whole decode cache; `dense_solve_madds_per_token` is the paper's own way for comparison: full
    score matrices, a full product with A and a dense triangular solve.
    """

    rule: str
    heads: int
    head_dim: int
    item_bytes: int
    forward_madds_per_token: float
    training_madds_per_token: float
    training_bytes_per_token: int
    decode_bytes_read_per_token: float
    cache_bytes: int
    decode_madds_last_token: int
    dense_solve_madds_per_token: float


def cost(
    pattern: Pattern,
    n: int,
    heads: int = 12,
    head_dim: int = 64,
    item_bytes: int = 4,
    rule: str | Coefficients = "softmax",
    kv_heads: int | None = None,
) -> Cost:
    """What one layer costs on n tokens. The defaults are GPT-2's smallest layer in float32.

    `rule` says how the coefficients are made (`resolvent.coefficients`); `kv_heads` how many sets of keys and values
    the heads share.
    """
    n = require_length(n)
    groups = heads if kv_heads is None else kv_heads
    sizes = (("heads", heads), ("head_dim", head_dim), ("item_bytes", item_bytes), ("kv_heads", groups))
    for name, value in sizes:
        if not is_integer(value) or value < 1:
            raise PatternError(f"expected {name} to be an integer ≥ 1, got {value!r}.")
    if heads % groups:
        raise PatternError(f"expected kv_heads to divide the {heads} heads, got {groups}.")
    rule = coefficients(rule)
    fit(rule, pattern)
    if isinstance(rule, LowRank):
        groups = heads  # what it feeds back is each head's own
    p = as_run(rule, pattern)
    nnz_a, nnz_b = (0, 0) if rule.first_order else nonzeros(p, n)
    key_dim = DIGITS if isinstance(rule, Distance) and rule.shape != "toeplitz" else head_dim
    products = heads * (key_dim + head_dim) * (nnz_a + nnz_b) / n
    sides = (p.direct == "all" or isinstance(rule, Whole)) + (
        p.recurrent and reads_several(p)
    )  # each has queries and keys
    scalars = heads * (2 * sides + p.recurrent)  # two numbers of each softmax, and the gate
    if isinstance(rule, Whole):  # coefficients are written out
        scalars += heads * round((nnz_a + nnz_b) / n)
    work, numbers = _of_the_state(rule, heads, head_dim)
    state = numbers * max(item_bytes, 4)  # kept in float32 at least
    slot_bytes = 0 if rule.first_order else _slot_bytes(rule, p, heads, groups, head_dim, key_dim, item_bytes)
    reads = (nnz_b if p.recurrent else nnz_a - n) / n
    last = 0 if rule.first_order else _row_entries(p, n - 1)
    pairs = 1 + pattern.recurrent
    return Cost(
        rule=str(rule),
        heads=heads,
        head_dim=head_dim,
        item_bytes=item_bytes,
        forward_madds_per_token=products + work,
        training_madds_per_token=(1 + _BACKWARD) * (products + work),
        training_bytes_per_token=item_bytes * (2 * heads * head_dim + 2 * sides * heads * key_dim + scalars),
        decode_bytes_read_per_token=reads * slot_bytes + state,
        cache_bytes=(p.slots(n) * slot_bytes if slot_bytes else 0) + state,
        decode_madds_last_token=heads * (key_dim + head_dim) * last + work,
        dense_solve_madds_per_token=heads * head_dim * (pairs * n + n + (n / 2 if pattern.recurrent else 0)),
    )


def _of_the_state(rule: Coefficients, heads: int, head_dim: int) -> tuple[int, int]:
    """Multiply-adds per token on a state that every token updates, and how many numbers it has."""
    match rule:
        case Mamba(state=state):
            return 3 * heads * head_dim * state, heads * head_dim * state  # fade, write, read
        case Linear():
            return 2 * heads * head_dim, heads * head_dim
        case LowRank(rank=rank):
            return 2 * heads * (head_dim + 1) * rank, heads * (head_dim + 1) * rank  # with a column for the row sums
    return 0, 0


def _slot_bytes(
    rule: Coefficients, p: Pattern, heads: int, groups: int, head_dim: int, key_dim: int, item_bytes: int
) -> int:
    """What a decoder keeps per slot. Keys and values are shared by a group of heads, outputs are each head's own.

    A softmax over a single entry is 1 whatever the score, so a matrix with one entry per row needs no keys.
    """
    direct = groups * (head_dim + key_dim) if p.direct == "all" else 0
    keys = groups * key_dim if reads_several(p) else 0
    feedback = heads * head_dim + keys if p.recurrent else 0
    logs = 8 * heads if isinstance(rule, Whole) else 0
    return (direct + feedback) * item_bytes + logs


def reads_several(pattern: Pattern) -> bool:
    """Whether some token reads more than one position: whether there are two strides.

    So it is for cache-efficient patterns, too: the positions of the second lattice are still alive when the next of
    the first one is read. (To ask for the reads of a far token would list all strides below it, and miss longer ones.)
    """
    last = pattern.strides.last
    return last is None or len(pattern.strides.below(last)) > 0


def _row_entries(pattern: Pattern, i: int) -> int:
    """Non-zeros of A and B in row i."""
    return 1 + pattern.reads(i) * ((pattern.direct == "all") + pattern.recurrent)


def nonzeros(pattern: Pattern, n: int) -> tuple[int, int]:
    """Non-zeros of A (its diagonal included) and of B on n tokens."""
    reads = total_reads(pattern, n)
    return n + (reads if pattern.direct == "all" else 0), reads if pattern.recurrent else 0


def total_reads(pattern: Pattern, n: int) -> int:
    """The sum of `reads(i)` over i < n, by columns: each position is read once per stride, or throughout its life."""
    if pattern.period(n) == 1:
        strides = pattern.offsets(n)
        return len(strides) * n - int(strides.sum())
    return int(np.minimum(pattern.lives(n), n - 1 - np.arange(n)).sum())

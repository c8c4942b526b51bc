"""Cost of a layer: multiply-adds and bytes per token, from the same integers as everything else.

Counted for attention-like coefficients: every non-zero of A or B costs one product of length D for its score and one
for its share of the output. The backward pass recomputes the scores (1), and needs the gradients of coefficient,
value, query and key (4): five such products against the forward's two.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from resolvent.patterns import Pattern, PatternError
from resolvent.patterns.errors import is_integer, require_length

_FORWARD, _BACKWARD = 2, 5


@dataclass(frozen=True)
class Cost:
    """Per layer. Multiply-adds and bytes are means over the n tokens, except as named.

    `cache_bytes` is the whole decode cache; `dense_solve_madds_per_token` is the paper's own way for comparison: full
    score matrices, a full product with A and a dense triangular solve.
    """

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


def cost(pattern: Pattern, n: int, heads: int = 12, head_dim: int = 64, item_bytes: int = 4) -> Cost:
    """What one layer costs on n tokens. The defaults are GPT-2's smallest layer in float32."""
    n = require_length(n)
    for name, value in (("heads", heads), ("head_dim", head_dim), ("item_bytes", item_bytes)):
        if not is_integer(value) or value < 1:
            raise PatternError(f"expected {name} to be an integer ≥ 1, got {value!r}.")
    nnz_a, nnz_b = nonzeros(pattern, n)
    products = heads * head_dim * (nnz_a + nnz_b) / n
    row = heads * head_dim * item_bytes
    vectors = cached_vectors(pattern)
    sides = 1 + pattern.recurrent  # A, and B if there is feedback: each has queries and keys
    scalars = heads * item_bytes * (2 * sides + pattern.recurrent)  # two numbers of each softmax, and the gate
    reads = (nnz_b if pattern.recurrent else nnz_a - n) / n
    return Cost(
        heads=heads,
        head_dim=head_dim,
        item_bytes=item_bytes,
        forward_madds_per_token=_FORWARD * products,
        training_madds_per_token=(_FORWARD + _BACKWARD) * products,
        training_bytes_per_token=row * (2 * sides + 2) + scalars,  # q and k per side, x and y
        decode_bytes_read_per_token=reads * vectors * row,
        cache_bytes=pattern.slots(n) * vectors * row,
        decode_madds_last_token=_FORWARD * heads * head_dim * _row_entries(pattern, n - 1),
        dense_solve_madds_per_token=heads * head_dim * (sides * n + n + (n / 2 if pattern.recurrent else 0)),
    )


def cached_vectors(pattern: Pattern) -> int:
    """Vectors of length D that a decoder keeps per slot and head: value and key for A, output and key for B.

    A softmax over a single entry is 1 whatever the score, so a matrix with one entry per row needs no keys.
    """
    if pattern.slots(2) == 0 and pattern.slots(1 << 20) == 0:
        return 0
    direct = 2 if pattern.direct == "all" else 0
    feedback = (2 if reads_several(pattern) else 1) if pattern.recurrent else 0
    return direct + feedback


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

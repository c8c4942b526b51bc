"""Cost of a layer: multiply-adds and bytes per token.

Every non-zero of A or B costs one product of length D for its score and one for its share of the output. The backward
pass recomputes the scores (1), and needs the gradients of coefficient, value, query and key (4): five such products
against the forward's two. Rules with a state (Mamba's, low-rank) cost what it takes to update and read it.
"""

from __future__ import annotations

from dataclasses import dataclass

from resolvent.errors import SettingError, is_integer
from resolvent.patterns import Needs, Pattern, PatternLike, as_pattern
from resolvent.patterns.checks import require_length
from resolvent.rules import Rule, as_rule, require_fit
from resolvent.rules.rope import BASE, RopeSetting, as_rope, require_rope_fit

_BACKWARD = 2.5  # times the forward pass


@dataclass(frozen=True)
class Cost:
    """Cost of one layer. Multiply-adds and bytes per token are means over the n tokens.

    `cache_bytes` is the size of the entire decode cache.
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


def cost(
    pattern: PatternLike,
    n: int | str,
    *,
    heads: int = 12,
    head_dim: int = 64,
    item_bytes: int = 4,
    rule: str | Rule = "softmax",
    kv_heads: int | None = None,
    rope: RopeSetting = BASE,
) -> Cost:
    """Compute the cost of one layer on n tokens. The defaults are a layer of the smallest GPT-2 in float32.

    Args:
        pattern: A pattern or its spelling.
        n: Number of tokens, as an integer or a string such as `"4k"`.
        heads: Number of heads.
        head_dim: Channels of each head.
        item_bytes: Bytes per number.
        rule: How A and B are parameterized, see `resolvent.rules`.
        kv_heads: Number of key and value heads, shared by groups of heads. Default: `heads`.
        rope: Rotary positions, which may lengthen queries and keys (docs/coefficients.md).

    Returns:
        Multiply-adds and bytes in training and decoding.

    >>> round(cost("exponential", 1024).forward_madds_per_token)
    29187
    """
    pattern, n, rule = as_pattern(pattern), require_length(n), as_rule(rule)
    shared = _shared_heads(rule, heads, head_dim, item_bytes, heads if kv_heads is None else kv_heads)
    require_fit(rule, pattern)
    run = rule.operator_pattern(pattern)
    needs = run.needs(rule.normalize)
    require_rope_fit(rule, rope, head_dim)
    rotation, key_dim = as_rope(rope), rule.key_dim(head_dim)
    key_dim = key_dim if rotation is None else rotation.key_dim(key_dim)
    nnz_a, nnz_b = (0, 0) if rule.scan else run.nonzeros(n)
    products = heads * (key_dim + head_dim) * (nnz_a + nnz_b) / n
    sides = needs.a + needs.b  # each has queries and keys
    scalars = heads * (2 * sides + needs.gate)  # two numbers of each softmax, and the gate
    if "logs" in needs.cached:  # coefficients are written out
        scalars += heads * round((nnz_a + nnz_b) / n)
    work = rule.state_madds(heads, head_dim) + rule.conv * heads * head_dim
    recent = max(rule.conv - 1, 0) * heads * head_dim * item_bytes  # inputs that the convolution still reads
    state = rule.state_size(heads, head_dim) * max(item_bytes, 4)  # kept in float32 at least
    stages = () if rule.scan else run.stages
    slot_bytes = [
        _slot_bytes(stage.needs(rule.normalize), heads, shared, head_dim, key_dim, item_bytes) for stage in stages
    ]
    last = 0 if rule.scan else _row_entries(run, n - 1)
    return Cost(
        rule=str(rule),
        heads=heads,
        head_dim=head_dim,
        item_bytes=item_bytes,
        forward_madds_per_token=products + work,
        training_madds_per_token=(1 + _BACKWARD) * (products + work),
        training_bytes_per_token=item_bytes * (2 * heads * head_dim + 2 * sides * heads * key_dim + scalars),
        decode_bytes_read_per_token=sum(
            stage.total_reads(n) / n * size for stage, size in zip(stages, slot_bytes, strict=True)
        )
        + state
        + recent,
        cache_bytes=sum(stage.slots(n) * size for stage, size in zip(stages, slot_bytes, strict=True)) + state + recent,
        decode_madds_last_token=heads * (key_dim + head_dim) * last + work,
    )


def cache_bytes(pattern: Pattern, n: int, heads: int, head_dim: int, item_bytes: int) -> int:
    """The decode cache of these heads on n tokens, under the rule softmax: as `cost` gives it, in no time.

    >>> cache_bytes(as_pattern("exponential+cache"), 1024, heads=12, head_dim=64, item_bytes=4)
    122880
    """
    return sum(
        stage.slots(n) * _slot_bytes(stage.needs(), heads, heads, head_dim, head_dim, item_bytes)
        for stage in pattern.stages
    )


def _shared_heads(rule: Rule, heads: int, head_dim: int, item_bytes: int, kv_heads: int) -> int:
    """Check all sizes; return the number of heads of the cached values and keys."""
    sizes = (("heads", heads), ("head_dim", head_dim), ("item_bytes", item_bytes), ("kv_heads", kv_heads))
    for name, value in sizes:
        if not is_integer(value) or value < 1:
            raise SettingError(f"expected {name} to be an integer ≥ 1, got {value!r}.")
    if heads % kv_heads:
        raise SettingError(f"expected kv_heads to divide the {heads} heads, got {kv_heads}.")
    return rule.shared_heads(heads, kv_heads)


def _slot_bytes(needs: Needs, heads: int, shared: int, head_dim: int, key_dim: int, item_bytes: int) -> int:
    """Bytes per cache slot. Keys and values are shared by a group of heads, outputs are not."""
    widths = {
        "values": shared * head_dim * item_bytes,
        "keys_a": shared * key_dim * item_bytes,
        "outputs": heads * head_dim * item_bytes,
        "keys_b": shared * key_dim * item_bytes,
        "logs": heads * 8,  # in float64
    }
    return sum(widths[name] for name in needs.cached)


def _row_entries(pattern: Pattern, i: int) -> int:
    return 1 + sum(stage.reads(i) * ((stage.direct == "all") + stage.recurrent) for stage in pattern.stages)

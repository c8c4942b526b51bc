"""The n-gram cache by its definition, in plain Python: what `resolvent.text.reach` computes in arrays."""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence

LONGEST = 2
ROUNDS = 30


def trigram(train: Sequence[int], context: Sequence[int], token: int, vocab_size: int) -> float:
    """Witten-Bell: contexts of two tokens, then one, then none, then all tokens alike."""
    probability = 1 / vocab_size
    for m in range(min(len(context), 2) + 1):
        known = list(context[len(context) - m :])
        followers = Counter(train[j] for j in range(m, len(train)) if list(train[j - m : j]) == known)
        total, kinds = sum(followers.values()), len(followers)
        if total:
            probability = (followers[token] + kinds * probability) / (total + kinds)
    return probability


def cache(window: Sequence[int], token: int) -> list[float]:
    """The share of the token among those that followed the last 0, 1, … tokens of the window in it; while any did."""
    shares = []
    for m in range(min(LONGEST, len(window)) + 1):
        known = list(window[len(window) - m :])
        followers = [window[j] for j in range(m, len(window)) if list(window[j - m : j]) == known]
        if not followers:
            break
        shares.append(followers.count(token) / len(followers))
    return shares


def weights(rows: Sequence[Sequence[float]], count: int) -> list[float]:
    """Of a mixture with so many parts, by EM."""
    found = [1 / count] * count
    for _ in range(ROUNDS):
        sums = [1.0] * count
        for row in rows:
            joint = [weight * part for weight, part in zip(found, row, strict=True)]
            for i, each in enumerate(joint):
                sums[i] += each / sum(joint)
        found = [each / (len(rows) + count) for each in sums]
    return found


def loss(train: Sequence[int], tokens: Sequence[int], vocab_size: int, window: int) -> float:
    """Nats per token with a cache of the last `window` tokens; 0 for the trigram model alone."""
    rows = []
    for i in range(1, len(tokens)):
        base = trigram(train, tokens[max(i - 2, 0) : i], tokens[i], vocab_size)
        rows.append([base, *(cache(tokens[max(i - window, 0) : i], tokens[i]) if window else [])])
    halves = [range(len(rows) // 2), range(len(rows) // 2, len(rows))]
    total = 0.0
    for fitted, measured in (halves, halves[::-1]):
        by_parts = defaultdict(list)
        for i in fitted:
            by_parts[len(rows[i])].append(rows[i])
        for i in measured:
            own = weights(by_parts[len(rows[i])], len(rows[i]))
            total -= math.log(sum(weight * part for weight, part in zip(own, rows[i], strict=True)))
    return total / len(rows)

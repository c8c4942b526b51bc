"""Integer expressions in `k` for many k at once, in 64-bit integers: sums, products and powers that provably fit."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import numpy.typing as npt

_Array = npt.NDArray[np.int64]
Arrays = Callable[[_Array], _Array]
Bound = Callable[[int], int]  # at least 1, growing with k, and no value on the way to the result is larger

_MOST = 2**62
_COMBINED: dict[type[ast.operator], Callable[[_Array, _Array], _Array]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}


def values_of(text: str, start: int, stop: int) -> _Array | None:
    """f(k) for start ≤ k < stop; None if a value might not fit in 64 bits, or the expression has other operators."""
    compiled = _compiled(text)
    if compiled is None or compiled[1](stop) > _MOST:
        return None
    return compiled[0](np.arange(start, stop, dtype=np.int64))


@lru_cache(maxsize=256)
def _compiled(text: str) -> tuple[Arrays, Bound] | None:
    return _build(ast.parse(text, mode="eval").body)


def _build(node: ast.expr) -> tuple[Arrays, Bound] | None:
    match node:
        case ast.Constant(value=value) if isinstance(value, int) and not isinstance(value, bool):
            constant = value
            return lambda k: np.full_like(k, constant), lambda _: max(abs(constant), 1)
        case ast.Name(id="k"):
            return lambda k: k, lambda k: max(k, 1)
        case ast.BinOp(left=left, op=ast.Pow(), right=right) if not _may_be_negative(right):
            return _joined(left, right, operator.pow, _power_bound)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _COMBINED:
            bound = operator.mul if isinstance(op, ast.Mult) else operator.add
            return _joined(left, right, _COMBINED[type(op)], bound)
    return None


def _joined(
    left: ast.expr,
    right: ast.expr,
    combine: Callable[[_Array, _Array], _Array],
    bound: Callable[[int, int], int],
) -> tuple[Arrays, Bound] | None:
    one, other = _build(left), _build(right)
    if one is None or other is None:
        return None
    return lambda k: combine(one[0](k), other[0](k)), lambda k: min(bound(one[1](k), other[1](k)), 2 * _MOST)


def _power_bound(base: int, exponent: int) -> int:
    return 1 if base == 1 else int(base ** min(exponent, 63))


def _may_be_negative(exponent: ast.expr) -> bool:
    """Whether there is a minus in it; k and numbers without one are ≥ 0."""
    return any(isinstance(node, ast.Sub | ast.USub) for node in ast.walk(exponent))

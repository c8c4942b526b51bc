"""Integer expressions in `k`, such as `k**3+1`: parsed into a tree and walked, never evaluated as Python."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from resolvent.errors import PatternError

ALLOWED = "integers, k, + - * // % **, parentheses, and min(…), max(…), abs(…)"

# Strides beyond this exceed any sequence; intermediate results may be somewhat larger, within `_LARGEST_BITS`.
LARGEST_STRIDE = 2**62
_LARGEST_BITS = 1024
_LONGEST_TEXT = 256  # characters
_MOST_TERMS = 64  # numbers, k, operators and functions: what one stride costs

_BINARY: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_FUNCTIONS: dict[str, Callable[..., int]] = {"min": min, "max": max, "abs": abs}
_HINTS: dict[type[ast.operator], str] = {
    ast.BitXor: " Powers are written **, not ^.",
    ast.Div: " Integer division is written //, not /.",
}

Function = Callable[[int], int]

# For many k at once, in 64-bit integers: sums, products and powers that provably fit.
_Array = npt.NDArray[np.int64]
Arrays = Callable[[_Array], _Array]
Bound = Callable[[int], int]  # at least 1, growing with k, and no value on the way to the result is larger

_COMBINED: dict[type[ast.operator], Callable[[_Array, _Array], _Array]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}


def canonical(text: str) -> str:
    """The canonical spelling of an expression: no spaces, no redundant parentheses."""
    return ast.unparse(_tree(text)).replace(" ", "")


def compile_expression(text: str) -> Function:
    """Compile an expression to a function of k; anything outside the small grammar raises an error."""
    return _build(_tree(text), text)


def _tree(text: str) -> ast.expr:
    if len(text) > _LONGEST_TEXT:
        raise PatternError(
            f"an expression in k of {len(text):,} characters is too long: expected at most {_LONGEST_TEXT}, "
            f"got '{text[:24]}…'."
        )
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        terms = sum(isinstance(node, ast.expr) for node in ast.walk(tree))
        if terms > _MOST_TERMS:
            raise PatternError(
                f"an expression in k of {terms} terms is too complex: expected at most {_MOST_TERMS}, "
                f"got '{text[:24]}…'."
            )
        return tree
    except PatternError:
        raise
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise PatternError(
            f"cannot read {text!r} as an expression in k: expected {ALLOWED}, for example 'k**2+1'."
        ) from None


def _build(node: ast.expr, text: str) -> Function:
    match node:
        case ast.Constant(value=value) if isinstance(value, int) and not isinstance(value, bool):
            constant = value
            return lambda _: constant
        case ast.Name(id="k"):
            return lambda k: k
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            inner = _build(operand, text)
            return lambda k: -inner(k)
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            base, exponent = _build(left, text), _build(right, text)
            return lambda k: _power(base(k), exponent(k), text)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            one, other = _build(left, text), _build(right, text)
            return lambda k: _product(one(k), other(k), text)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            combine, first, second = _BINARY[type(op)], _build(left, text), _build(right, text)
            return lambda k: combine(first(k), second(k))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _FUNCTIONS and arguments:
            function, values = _FUNCTIONS[name], [_build(argument, text) for argument in arguments]
            if (len(values) == 1) != (name == "abs"):
                count = "one value" if name == "abs" else "two values or more"
                raise PatternError(f"{name}(…) takes {count}, got {len(values)} in {text!r}.")
            return lambda k: function(*(value(k) for value in values))
    hint = _HINTS.get(type(node.op), "") if isinstance(node, ast.BinOp) else ""
    raise PatternError(f"{ast.unparse(node)!r} is not allowed in {text!r}: expected {ALLOWED}.{hint}")


def _power(base: int, exponent: int, text: str) -> int:
    if exponent < 0:
        raise PatternError(f"negative power {base}**{exponent} in {text!r}: strides are integers.")
    if base in (-1, 0, 1):  # which never grow
        return base ** (exponent if base != -1 else exponent % 2) if exponent else 1
    _check_bits(base.bit_length() * exponent, text)
    return int(base**exponent)


def _product(one: int, other: int, text: str) -> int:
    _check_bits(one.bit_length() + other.bit_length(), text)
    return one * other


def _check_bits(bits: int, text: str) -> None:
    """No intermediate value is so long that a file could make arithmetic slow."""
    if bits > _LARGEST_BITS:
        raise PatternError(f"{text!r} grows past {_LARGEST_BITS} bits before it settles: use a slower expression.")


def values_of(text: str, start: int, stop: int) -> _Array | None:
    """f(k) for start ≤ k < stop; None if a value might not fit in 64 bits, or the expression has other operators."""
    compiled = _compiled(text)
    if compiled is None or compiled[1](stop) > LARGEST_STRIDE:
        return None
    return compiled[0](np.arange(start, stop, dtype=np.int64))


@lru_cache(maxsize=256)
def _compiled(text: str) -> tuple[Arrays, Bound] | None:
    return _build_arrays(ast.parse(text, mode="eval").body)


def _build_arrays(node: ast.expr) -> tuple[Arrays, Bound] | None:
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
    one, other = _build_arrays(left), _build_arrays(right)
    if one is None or other is None:
        return None
    return lambda k: combine(one[0](k), other[0](k)), lambda k: min(bound(one[1](k), other[1](k)), 2 * LARGEST_STRIDE)


def _power_bound(base: int, exponent: int) -> int:
    return 1 if base == 1 else int(base ** min(exponent, 63))


def _may_be_negative(exponent: ast.expr) -> bool:
    """Whether there is a minus in it; k and numbers without one are ≥ 0."""
    return any(isinstance(node, ast.Sub | ast.USub) for node in ast.walk(exponent))

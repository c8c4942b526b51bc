"""Integer expressions in `k`, such as `k**3+1`: parsed into a tree and walked, never evaluated as Python."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from functools import lru_cache

from resolvent.patterns.errors import PatternError

ALLOWED = "integers, k, + - * // % **, parentheses, and min(…), max(…), abs(…)"

# A stride beyond this is beyond any sequence; intermediate results may be somewhat larger, never astronomically so.
LARGEST_STRIDE = 2**62
_LARGEST_BITS = 4096

_BINARY: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_FUNCTIONS: dict[str, Callable[..., int]] = {"min": min, "max": max, "abs": abs}
_HINTS: dict[type[ast.operator], str] = {
    ast.BitXor: " Powers are written **, not ^.",
    ast.Div: " Integer division is written //, not /.",
}

Function = Callable[[int], int]


def canonical(text: str) -> str:
    """The one spelling of an expression: no spaces, no needless parentheses."""
    return ast.unparse(_tree(text)).replace(" ", "")


@lru_cache(maxsize=256)
def compile_expression(text: str) -> Function:
    """A function of k from its text; anything outside the small grammar is refused."""
    return _build(_tree(text), text)


def _tree(text: str) -> ast.expr:
    try:
        return ast.parse(text.strip(), mode="eval").body
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
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            combine, first, second = _BINARY[type(op)], _build(left, text), _build(right, text)
            return lambda k: combine(first(k), second(k))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _FUNCTIONS and arguments:
            function, parts = _FUNCTIONS[name], [_build(argument, text) for argument in arguments]
            if (len(parts) == 1) != (name == "abs"):
                count = "one value" if name == "abs" else "two values or more"
                raise PatternError(f"{name}(…) takes {count}, got {len(parts)} in {text!r}.")
            return lambda k: function(*(part(k) for part in parts))
    hint = _HINTS.get(type(node.op), "") if isinstance(node, ast.BinOp) else ""
    raise PatternError(f"{ast.unparse(node)!r} is not allowed in {text!r}: expected {ALLOWED}.{hint}")


def _power(base: int, exponent: int, text: str) -> int:
    if exponent < 0:
        raise PatternError(f"negative power {base}**{exponent} in {text!r}: strides are integers.")
    if max(base.bit_length(), 1) * exponent > _LARGEST_BITS:
        raise PatternError(f"{text!r} grows past {_LARGEST_BITS} bits before it settles: use a slower expression.")
    return int(base**exponent)

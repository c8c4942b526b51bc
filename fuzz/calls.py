"""Random calls of the operator: shapes, dtypes, memory layouts, options, packed and padded sequences."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import resolvent as rv
from fuzz import oracle
from fuzz.case import Case
from fuzz.compare import Tensors
from fuzz.patterns import DrawnPattern, draw_pattern
from resolvent.ops.backend import Backend

LENGTHS = [1, 2, 3, 7, 16, 31, 63, 64, 65, 100, 129, 257]
LONG = [300, 520, 1100]  # beyond every block of the kernels but the one for sequences of more than 8192 tokens
WIDTHS = [1, 2, 3, 5, 8, 13, 16, 17, 33, 64]
DTYPES = [torch.float64, torch.float64, torch.float32, torch.float32, torch.bfloat16, torch.float16]
_MOST, _MOST_ENTRIES = 1 << 16, 1 << 21  # numbers in a tensor, and in a matrix of the oracle: keeps cases quick


@dataclass
class Call:
    """Arguments of `mix`, those that are tensors by name. `numbers` are a gate and a tie that are plain numbers."""

    drawn: DrawnPattern
    tensors: Tensors
    heads: int
    dtype: torch.dtype
    scale: float | None = None
    joint: bool = False
    numbers: dict[str, float] = field(default_factory=dict)
    cuts: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)

    @property
    def batch(self) -> int:
        return self.tensors["x"].shape[0]

    @property
    def n(self) -> int:
        return self.tensors["x"].shape[2]

    @property
    def key_dim(self) -> int:
        """As the operator sees it: that of x where no scores are used."""
        needs = self.operated.needs("joint" if self.joint else "gate")
        name = "qa" if needs.a else "qb" if needs.b else "x"
        return self.tensors[name].shape[-1]

    @property
    def tied(self) -> bool:
        return "tied" in self.tensors or "tied" in self.numbers

    @property
    def operated(self) -> rv.Pattern:
        pattern = self.drawn.pattern
        return pattern.with_diagonal_a() if self.tied else pattern

    def arguments(self, tensors: Tensors, first: int = 0, last: int | None = None) -> dict[str, Any]:
        """Scores and options, for all positions or some."""
        cut = {name: t if name == "tied" else _positions(name, t, first, last) for name, t in tensors.items()}
        pairs = {side: (cut[f"q{side}"], cut[f"k{side}"]) if f"q{side}" in cut else None for side in "ab"}
        others = {name: cut.get(name, self.numbers.get(name)) for name in ("gate", "tied")}
        return {**pairs, **others, "scale": self.scale, "normalize": "joint" if self.joint else "gate"}

    def mix(self, tensors: Tensors, backend: str | Backend) -> Tensor:
        return rv.mix(
            tensors["x"], self.drawn.given, **self.arguments(tensors), cu_seqlens=self.cuts or None,
            start=self.starts or None, backend=backend,
        )  # fmt: skip

    def oracle(self) -> Callable[[Tensors], Tensor]:
        """`mix` by matrices."""
        sets = self.drawn.a(self.n), self.drawn.b(self.n)
        rows = oracle.reads(sets, self.batch, self.n, self.cuts or [0, self.n], self.starts)
        pattern = self.drawn.pattern

        def run(tensors: Tensors) -> Tensor:
            scale = self.key_dim**-0.5 if self.scale is None else self.scale
            return oracle.mix(
                self._expanded(tensors), rows, direct=pattern.direct == "all", recurrent=pattern.recurrent,
                scale=scale, joint=self.joint,
            )  # fmt: skip

        return run

    def _expanded(self, tensors: Tensors) -> Tensors:
        """All heads and rows written out; what is a number as a tensor."""
        full = {name: t.repeat_interleave(self.heads // t.shape[1], 1) for name, t in tensors.items() if t.ndim == 4}
        numbers = {name: torch.tensor(value, dtype=torch.float64) for name, value in self.numbers.items()}
        others = numbers | {name: t for name, t in tensors.items() if t.ndim != 4}
        if "gate" in others:
            full["gate"] = others["gate"].expand(self.batch, self.heads, self.n)
        if "tied" in others:
            full["tied"] = others["tied"].reshape(-1, 1, 1)
        return full


def _positions(name: str, t: Tensor, first: int, last: int | None) -> Tensor:
    if name == "gate":
        return t if not t.ndim or t.shape[-1] == 1 else t[..., first:last]
    return t[:, :, first:last]


def draw_call(case: Case, *, longest: int = 1100, dtypes: list[torch.dtype] = DTYPES, padding: bool = True) -> Call:
    """A call that is valid. Half precision is drawn less often: its tolerance hides more."""
    drawn, dtype = draw_pattern(case), case.choose(dtypes)
    pattern = drawn.pattern
    n = min(case.choose([*LENGTHS, *LONG, *(case.integer(1, 70) for _ in range(20))]), longest)
    batch, groups = case.choose([0] + 8 * [1] + 6 * [2] + 4 * [3]), case.choose([1, 1, 2, 3])
    heads = groups * case.choose([1, 1, 1, 2, 3])
    if batch * heads * n * n > _MOST_ENTRIES:
        batch, groups, heads = 1, 1, case.choose([1, 1, 2]) if n < 1000 else 1
    dim, key_dim = case.choose(WIDTHS), case.choose(WIDTHS)
    while batch * heads * n * max(dim, key_dim) > _MOST:
        dim, key_dim = -(-dim // 2), -(-key_dim // 2)
    call = Call(drawn, {}, heads, dtype)
    if pattern.recurrent:
        option = case.choose(["plain", "plain", "joint", *["tied"] * (len(pattern.stages) == 1)])
        call.joint = option == "joint"
        if option == "tied":
            delta = case.normal((heads,)).to(dtype)
            call.tensors["tied"] = case.choose([delta, delta[0]])
            if case.chance(0.3):
                call.numbers["tied"] = float(call.tensors.pop("tied")[...].flatten()[0])
    elif case.chance(0.1):
        call.joint = True  # which changes nothing then
    call.scale = case.choose([None, None, None, 1.0, 0.3, 0.0, -0.7])
    _draw_tensors(case, call, (batch, groups, n, dim, key_dim))
    _draw_sequences(case, call, padding=padding)
    layouts = {name: (tuple(t.shape), t.stride(), t.storage_offset()) for name, t in call.tensors.items()}
    case.say(pattern=drawn, dtype=dtype, normalize="joint" if call.joint else "gate", scale=call.scale, tied=call.tied,
             numbers=call.numbers, cu_seqlens=call.cuts, start=call.starts, tensors=layouts)  # fmt: skip
    return call


def _draw_tensors(case: Case, call: Call, sizes: tuple[int, int, int, int, int]) -> None:
    batch, groups, n, dim, key_dim = sizes
    needs, spread = call.operated.needs("joint" if call.joint else "gate"), case.choose([0.3, 1.0, 1.0, 3.0])
    call.tensors["x"] = lay_out(case, case.normal((batch, groups, n, dim)).to(call.dtype))
    for side, needed in (("a", needs.a), ("b", needs.b)):
        if needed or case.chance(0.3):  # what is not used is ignored, but says how many heads there are
            for kind, count in (("q", call.heads), ("k", groups)):
                vectors = case.normal((batch, count, n, key_dim)) * (spread if kind == "q" else 1.0)
                call.tensors[kind + side] = lay_out(case, vectors.to(call.dtype))
    given_heads = {call.tensors[name].shape[1] for name in ("qa", "qb") if name in call.tensors}
    if needs.gate or case.chance(0.2):
        _draw_gate(case, call, (batch, call.heads, n), needed=needs.gate)
    gate = call.tensors.get("gate")
    says_heads = needs.gate and gate is not None and gate.ndim >= 2 and gate.shape[-2] != 1
    if call.heads not in given_heads and not says_heads:
        call.heads = groups  # nothing says otherwise
        if "tied" in call.tensors and call.tensors["tied"].ndim:
            call.tensors["tied"] = call.tensors["tied"][:groups]


def _draw_gate(case: Case, call: Call, shape: tuple[int, int, int], *, needed: bool) -> None:
    least = 0.01 if call.joint else 0.0  # log g is in the joint softmax; at zero its derivative is none
    if case.chance(0.2):
        call.numbers["gate"] = case.choose([least, 0.5, 0.9, 1.0])
        return
    batch, heads, n = shape
    sizes = case.choose(
        4 * [shape] + [(heads, 1), (batch, 1, n), (1, heads, n), (n,), (), (heads, n), (batch, heads, 1)]
    )
    if not needed:
        sizes = shape
    gate = torch.rand(sizes, dtype=torch.float64, generator=case.generator()).clamp(min=least)
    if case.chance(0.2):
        gate = torch.where(gate < 0.3, least, torch.where(gate > 0.7, 1.0, gate))
    finer = call.dtype in (torch.bfloat16, torch.float16) and case.chance(0.5)
    call.tensors["gate"] = lay_out(case, gate.to(torch.float32 if finer else call.dtype))


def _draw_sequences(case: Case, call: Call, *, padding: bool) -> None:
    option = case.choose(["one", "one", "packed", "padded"]) if padding else "one"
    if option == "packed":
        sizes = case.splits(call.n)
        call.cuts = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
    elif option == "padded" and call.batch:
        call.starts = [case.choose([0, case.integer(0, call.n), call.n]) for _ in range(call.batch)]
        if case.chance(0.7):
            spoil_padding(call)


def spoil_padding(call: Call) -> None:
    """NaN in every padded row of the tensors whose memory is not shared between rows."""
    for name, t in call.tensors.items():
        full = t.ndim == 4 or (name == "gate" and tuple(t.shape) == (call.batch, call.heads, call.n))
        if full and 0 not in [s for s, size in zip(t.stride(), t.shape, strict=True) if size > 1]:
            for b, start in enumerate(call.starts):
                t[b, :, :start] = math.nan


def lay_out(case: Case, t: Tensor) -> Tensor:
    """The same shape, perhaps in other memory: transposed, a slice of something larger, or one row for all."""
    if t.ndim < 2:
        return t
    match case.choose(["plain", "plain", "transposed", "reversed", "sliced", "offset", "stepped", "expanded"]):
        case "transposed":
            return t.transpose(-3, -2).contiguous().transpose(-3, -2) if t.ndim > 2 else t.mT.contiguous().mT
        case "reversed":
            order = tuple(reversed(range(t.ndim)))
            return t.permute(order).contiguous().permute(order)
        case "sliced":
            return torch.cat([t, t], -1)[..., : t.shape[-1]]
        case "offset":
            return torch.cat([t.new_full((1,), math.nan), t.flatten()])[1:].view(t.shape)
        case "stepped":
            return t.repeat_interleave(2, -2)[..., ::2, :]
        case "expanded":
            axis = case.integer(0, t.ndim - 1)
            return t.narrow(axis, 0, 1).expand(t.shape) if t.shape[axis] else t
    return t

"""What a call of the operator is about, in constants that a traced graph can hold."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

from torch import Tensor

from resolvent.errors import shortened
from resolvent.fields import LARGEST
from resolvent.ops.backend import Backend, Operation, Request
from resolvent.ops.inputs import Inputs
from resolvent.patterns import Needs, Normalize, Pattern, PatternLike, as_pattern


class Options(NamedTuple):
    """Options of `mix` and `extend`."""

    scale: float | None = None
    normalize: Normalize = "gate"
    tied: Tensor | float | None = None
    backend: str | Backend = "auto"

    def scale_of(self, inputs: Inputs) -> float:
        if isinstance(self.scale, Tensor | str):  # kernels would take a number from either, and leave out its gradient
            raise TypeError(
                f"expected scale as a number, got {type(self.scale).__name__}: to learn one, multiply queries by it."
            )
        limit = LARGEST if isinstance(self.scale, int) else math.inf  # floats end somewhere, integers do not
        if self.scale is not None and not abs(self.scale) < limit:  # NaN, too
            raise ValueError(f"expected a finite scale, got {shortened(self.scale)}: to weigh all reads alike, use 0.")
        usual = float(max(inputs.key_dim, 1) ** -0.5)  # keys without features score 0, whatever the scale
        return usual if self.scale is None else float(self.scale)


class StageCall(NamedTuple):
    """What a backend is asked of one stage: a pattern has one, a pair has A's and B's."""

    label: str
    is_dense: bool
    recurrent: bool
    joint: bool

    def request(self, operation: Operation, x: Tensor) -> Request:
        tokens = x.shape[2] if x.ndim == 4 else 1
        normalize: Normalize = "joint" if self.joint else "gate"
        kind = (operation, self.label, self.is_dense, self.recurrent)
        shape = (x.dtype, x.shape[-1] if x.ndim else 0)
        return Request(*kind, x.device.type, tokens, normalize, *shape)


class Call(NamedTuple):
    """What a call is about, in constants that a traced graph can hold."""

    label: str
    has_spelling: bool
    joint: bool
    needs: Needs
    stages: tuple[StageCall, ...]


def call_of(pattern: PatternLike, normalize: Normalize, tied: bool) -> Call:
    return _cached(pattern, normalize, tied)


# A constant to a traced graph. `torch.compiler.assume_constant_result` does just this, but imports torch._dynamo, which
# takes seconds.
call_of.__dict__["_dynamo_marked_constant"] = True


def traced_spellings(pattern: PatternLike, tied: bool) -> tuple[str, ...]:
    """The stages as a traced graph holds them; `check_traceable` says if it cannot."""
    return tuple(stage.spelling for stage in as_operated(pattern, tied).stages)


traced_spellings.__dict__["_dynamo_marked_constant"] = True


@lru_cache(maxsize=256)
def _cached(pattern: PatternLike, normalize: Normalize, tied: bool) -> Call:
    if normalize not in ("gate", "joint"):
        raise ValueError(f"expected normalize 'gate' or 'joint', got {normalize!r}.")
    if normalize == "joint" and tied:
        raise ValueError("tied matrices are normalized by the gate: expected normalize='gate', got 'joint'.")
    run = as_operated(pattern, tied)
    joint = normalize == "joint" and run.recurrent  # without feedback the two normalizations are one
    stages = tuple(StageCall(str(stage), stage.is_dense, stage.recurrent, joint) for stage in run.stages)
    return Call(str(run), run.has_spelling, joint, run.needs(normalize), stages)


def as_operated(pattern: PatternLike, tied: bool) -> Pattern:
    """The pattern that the operator runs on: with A tied to B, A's own part is the diagonal."""
    chosen = as_pattern(pattern)
    if tied and not chosen.recurrent:
        raise ValueError(f"tied needs a pattern with feedback, got {chosen}.")
    if tied and len(chosen.stages) > 1:
        raise ValueError(f"tied needs a pattern whose A and B read the same positions, got {chosen}.")
    return chosen.with_diagonal_a() if tied else chosen


def check_traceable(call: Call) -> None:
    """What `torch.compile` and `torch.export` cannot hold in a graph raises an error with the reason."""
    if call.joint:
        raise NotImplementedError(
            "normalize='joint' cannot be traced yet: expected 'gate' under torch.compile and export."
        )
    if not call.has_spelling:
        raise NotImplementedError(
            f"{call.label} is a Python function, which no graph can hold: expected a spelling like 'stride:k**3+1'."
        )

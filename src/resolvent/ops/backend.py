"""What a backend is. Any module or object with these functions will do; `registry.py` lists those that are known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from resolvent.ops.inputs import Inputs
from resolvent.ops.rows import Rows
from resolvent.patterns import Normalize, Stage
from resolvent.patterns.strides import Integers

Operation = Literal["mix", "solve", "extend"]


class Request(NamedTuple):
    """What is asked of a backend, in constants that a traced graph can hold."""

    operation: Operation
    pattern: str
    is_dense: bool
    recurrent: bool
    device: str
    tokens: int
    normalize: Normalize = "gate"
    dtype: torch.dtype = torch.float32
    dim: int = 0


class Token(NamedTuple):
    """One decoded token of each sequence: inputs (N = 1), the cache's tensors, slots to read, and those to write.

    Tensors of the cache: "values" and "keys_a" (B, G, slots, ·) where A reads the past, "outputs" (B, H, slots, D) and
    "keys_b" where B does. Sequence b reads the slots `reads[begins[b] : begins[b + 1]]` and goes into `writes[b]`, -1
    for a token that no later one reads. Where all stand at one position, there is one entry for all of them.

    The same follows from `pattern`, the `positions` of the sequences, and the `capacity` of the cache in tokens: for a
    backend that would rather find slots on its device.
    """

    inputs: Inputs
    cache: dict[str, Tensor]
    reads: Integers
    begins: Integers
    writes: Integers
    direct: bool  # whether A reads the past
    recurrent: bool
    pattern: Stage
    positions: Integers
    capacity: int

    @property
    def ragged(self) -> bool:
        """Whether sequences stand at different positions."""
        return len(self.writes) > 1

    def by_sequence(self) -> Iterator[Token]:
        """One token for each sequence, whose cache is a view."""
        for b, write in enumerate(self.writes):
            first, last = self.begins[b], self.begins[b + 1]
            row = slice(b, b + 1)
            yield self._replace(
                inputs=Inputs(*(t[row] for t in self.inputs)),
                cache={name: t[row] for name, t in self.cache.items()},
                reads=self.reads[first:last],
                begins=self.begins[b : b + 2] - first,
                writes=write[None],
                positions=self.positions[row],
            )


@runtime_checkable
class Backend(Protocol):
    """Computes the operator. Derivatives are its own affair; half precision is computed in float32.

    `y_known` has the outputs of the rows that are known from before, which `x`, `ka` and `kb` have in front; it is None
    without feedback, whatever `rows.known` is. `ops/reference.py` is the shortest example.
    """

    @property
    def NAME(self) -> str: ...  # noqa: N802

    def refusal(self, request: Request) -> str | None:
        """Why it cannot do this, in a sentence; None if it can. The registry adds which backends can."""

    def preference(self, request: Request) -> str | None:
        """Why `backend="auto"` should choose it; None to leave it to the next one."""

    def mix(self, inputs: Inputs, rows: Rows, scale: float, y_known: Tensor | None = None) -> Tensor:
        """The new rows of y = (I - B)^-1 A x with gated softmax coefficients: (B, H, new, D)."""

    def solve(self, x: Tensor, alpha: Tensor, beta: Tensor | None, rows: Rows, y_known: Tensor | None = None) -> Tensor:
        """The new rows of y = (I - B)^-1 A x with explicit coefficients."""

    def step(self, token: Token, scale: float) -> Tensor:
        """The outputs of one token per sequence, (B, H, 1, D), whose rows then go into the cache. Without gradients."""


@runtime_checkable
class PreparedBackend(Backend, Protocol):
    """A backend that has something to do before its first call, such as to compile."""

    def prepare(self, pattern: Stage, dtype: torch.dtype, d: int) -> None:
        """A layer with this pattern and dtype, and heads of d channels, will be called soon. Returns at once."""


@runtime_checkable
class SplitBackend(Backend, Protocol):
    """A backend whose backward pass is a function of its own, so that a traced graph can hold what it saves."""

    def forward(self, inputs: Sequence[Tensor], rows: Rows, scale: float) -> tuple[Tensor, Tensor, Tensor]:
        """Outputs, and two tensors with what else `backward` needs to know of this pass."""

    def saved_like(self, inputs: Sequence[Tensor], pattern: Stage) -> tuple[Tensor, Tensor]:
        """Empty tensors of the shapes and dtypes of these two."""

    def backward(
        self, grad_y: Tensor, saved: Sequence[Tensor], inputs: Sequence[Tensor], rows: Rows, scale: float
    ) -> tuple[Tensor, ...]:
        """Gradients of the six inputs, perhaps followed by others; `saved` is what `forward` gave."""

"""The operator on a pair of patterns: A's stage, then B's.

With u = A~ x and gates g the outputs are y_i = (1 - g_i) u_i + g_i Σ_j B~_ij y_j: what `mix` does on B's pattern, whose
A is the diagonal, if u takes the place of x. So a pair needs no kernels of its own, and costs what its two stages cost.
Where B reads nothing, g counts as 0, as ever.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from resolvent.ops import joint
from resolvent.ops.backend import Backend
from resolvent.ops.inputs import Inputs

Runner = Backend | joint.DirectPart
RunStage = Callable[[int, Inputs, float, Runner], Tensor]  # the number of the stage, and what it runs on


def through_pair(
    inputs: Inputs, scale: float, backends: Sequence[Backend], run: RunStage, *, joint_softmax: bool
) -> Tensor:
    """The outputs of B's stage, on those of A's."""
    if not joint_softmax:
        u = run(0, inputs, scale, backends[0])
        return run(1, inputs._replace(x=u), scale, backends[1])
    inputs = joint.scaled(inputs, scale)
    mixed = run(0, inputs, 1.0, joint.DirectPart(backends[0]))
    return run(1, joint.after_direct(inputs, mixed), 1.0, backends[1])

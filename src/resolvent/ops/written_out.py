"""The coefficients that `mix` uses, written out as `solve` takes them: for looking at."""

from __future__ import annotations

import torch
from torch import Tensor

from resolvent.ops import joint, portable, tied
from resolvent.ops.by_distance import DistanceBackend
from resolvent.ops.call import Options, as_operated, call_of
from resolvent.ops.inputs import Inputs, Scores, checked_inputs
from resolvent.ops.rows import Rows, rows_of
from resolvent.patterns import PatternLike, Stage


def coefficients(
    x: Tensor, pattern: PatternLike, scores: Scores, options: Options
) -> tuple[Tensor, Tensor | None, Stage, Stage]:
    """Alpha and beta on one sequence, and the stages that they live on: the same, unless the pattern is a pair."""
    call = call_of(pattern, options.normalize, options.tied is not None)
    inputs = checked_inputs(x, scores, call.needs, call.label).with_all_heads()
    scale = options.scale_of(inputs)
    stages = as_operated(pattern, options.tied is not None).stages
    a, b = stages[0], stages[-1]
    first, last = (rows_of(stage, (0, x.shape[2])) for stage in (a, b))
    gated_softmax = (
        options.backend.coefficients if isinstance(options.backend, DistanceBackend) else portable.coefficients
    )
    if len(stages) > 1 and not call.joint:
        alpha, _ = gated_softmax(inputs, first, scale)
        share, feedback = gated_softmax(inputs, last, scale)
        return share * alpha, feedback, a, b
    if len(stages) > 1:
        return *_of_joint_pair(inputs, (first, last), scale), a, b
    if call.joint:
        alpha, beta, _ = joint.coefficients(inputs, first, scale)
        return alpha, beta, a, b
    alpha, gated = gated_softmax(inputs, first, scale)
    if options.tied is None or gated is None:
        return alpha, gated, a, b
    d = tied.by_token(options.tied, gated).to(gated.dtype)
    own = 1 - (1 + d) * gated.sum(-1, keepdim=True)
    if d.shape[2] > 1:
        read = d.expand(*gated.shape[:3], 1)[:, :, torch.from_numpy(first.table).to(d.device).long().clamp(min=0), 0]
        gated, d = gated * (1 + d) / (1 + read), read
    return torch.cat([own, d * gated], -1), gated, b.modified("all", recurrent=True), b


def _of_joint_pair(inputs: Inputs, rows: tuple[Rows, Rows], scale: float) -> tuple[Tensor, Tensor | None]:
    """A of the second stage is diagonal, and weighs the rows of the first one's."""
    inputs, scale = joint.scaled(inputs, scale), 1.0
    direct = joint.direct_scores(inputs, rows[0], scale)
    alpha = direct.softmax(-1)
    mass = direct.logsumexp(-1, keepdim=True)
    share, beta, _ = joint.coefficients(joint.with_direct_mass(inputs, inputs.x, mass), rows[1], scale)
    return share * alpha.to(share.dtype), beta

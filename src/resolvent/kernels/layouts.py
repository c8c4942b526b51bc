"""Tables that kernels take in place of many arguments: integers by name, as they lie in memory."""

from __future__ import annotations

import numpy as np


def _integers(*names: str) -> np.dtype[np.void]:
    return np.dtype([(name, np.int64) for name in names])


# Addresses of float32 parameters, 0 for one that is not there, and sizes. Without `gate`, gates are given: one number
# per head, at `gate_step`.
BLOCK = _integers(
    "mixer_norm", "mixer_norm_bias", "values", "values_bias", "scores", "scores_bias", "gate", "gate_step",
    "gate_log_rate", "output", "output_bias", "mlp_norm", "mlp_norm_bias", "mlp_in", "mlp_in_bias", "mlp_out",
    "mlp_out_bias", "score_rows", "gates", "first_group", "last_group",
)  # fmt: skip

# Heads that share a pattern: which they are; where their queries, keys and gates lie among the projections; addresses
# in their cache; and which plan they read by.
GROUP = _integers(
    "first_head", "heads", "first_shared", "shared", "qa", "ka", "qb", "kb", "gate", "direct", "recurrent", "scored",
    "values", "keys_a", "outputs", "keys_b", "slots", "plan",
)  # fmt: skip

# All that a call takes. First the functions of the team's library, 0 if there is one thread. `positions` is how many
# entries a plan has: one for all sequences, or one for each. `normed` and `scratch` hold those of every thread.
CALL = _integers(
    "thread_number", "team_size", "barrier", "blocks", "block_count", "groups", "tokens", "batch",
    "embedding", "norm", "norm_bias", "reads", "begins", "writes", "positions", "rotations",
    "rotated", "dim", "heads", "shared", "inner", "head_dim", "vocabulary", "numbers", "x", "rows", "pitch", "mixed",
    "hidden", "logits", "normed", "scratch", "scratch_size",
)  # fmt: skip

# What a team of threads takes, in slots of 8 bytes: `thread_number` is a function of the team's library, `next` the
# range that the next thread takes, `status` not 0 if a kernel failed. Behind it come `ranges` pairs of numbers, the
# first job and the one after the last, and `blocks` times the kernel's packed arguments, in `block_slots` slots each:
# one block for a thread, with scratch of its own, of which the last two slots are the range at work.
TEAM_HEADER = ("thread_number", "next", "ranges", "status", "block_slots", "blocks")

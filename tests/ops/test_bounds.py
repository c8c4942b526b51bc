"""No kernel reads or writes beside its arrays: with NUMBA_BOUNDSCHECK=1, machine code looks at every index.

In processes of their own, since the setting is read when code is compiled, and the first access outside ends a process.
"""

import pytest

from tests.processes import run

OUTSIDE = """
import numpy as np
from numba import njit
from resolvent.kernels.vectors import load, store

@njit
def move(array, source, target):
    store(array, np.uint64(target), load(array, np.uint64(source), (0,)))

array = np.arange(64.0)
move(array, 0, 48)
assert array[63] == 15
move(array, {source}, {target})
"""

OPERATOR = """
import torch
from tests.operator_cases import mix, mixer_inputs

SEQUENCES = [[0, 133], [0, 37, 37, 38, 133, 133], [0, 0, 133]]  # empty ones between, last and first
for spec in ("first-order", "exponential", "exponential+cache", "local:5", "fenwick"):
    for ends in SEQUENCES:
        inputs = {name: t.requires_grad_() for name, t in mixer_inputs(ends[-1], torch.float32, 1, 2, 32, 16).items()}
        y = mix(inputs, spec, cu_seqlens=ends, backend="cpu")
        torch.autograd.grad(y.sum(), list(inputs.values()), allow_unused=True)
print("all inside")
"""


@pytest.mark.parametrize(("source", "target"), [(49, 0), (0, 49), (-1, 0)])
def test_an_access_outside_ends_the_process(source: int, target: int) -> None:
    process = run("-c", OUTSIDE.format(source=source, target=target), NUMBA_BOUNDSCHECK="1")
    assert process.returncode < 0, process.stderr  # by a signal: not an assertion, nor a missing module


def test_forward_and_backward_stay_inside() -> None:
    process = run("-c", OPERATOR, NUMBA_BOUNDSCHECK="1")
    assert process.stdout == "all inside\n", process.stderr

"""How many threads of torch, which the kernels use as well, a case runs on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fuzz.case import Case


def use_one_thread() -> None:
    """By default: cases are small, and threads that wait for one another take most of the time."""
    torch.set_num_threads(1)


@contextmanager
def threads(case: Case) -> Iterator[None]:
    """One, or some: with more threads than heads, kernels divide the channels of a head."""
    torch.set_num_threads(case.choose([1, 1, 1, 2, 4]))
    try:
        yield
    finally:
        use_one_thread()

"""What all tests of benchmarks share."""

from collections.abc import Iterator

import pytest
import torch

from resolvent.bench import decode, generation, run, training
from tests.bench.samples import LIMITS


@pytest.fixture(autouse=True)
def one_thread_and_known_limits(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Threads that wait for each other take as long as the machine is busy."""
    for module in (run, decode, generation, training):
        monkeypatch.setattr(module, "measure_machine", lambda: LIMITS)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)

"""Jobs run on torch's own threads, or in a pool: each once, whatever happens around them."""

import ctypes
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch

from resolvent.kernels import Kernel
from resolvent.kernels.layouts import TEAM_HEADER
from resolvent.ops.cpu import openmp, threads
from resolvent.ops.cpu.layout import memory_of
from resolvent.ops.cpu.threads import in_threads
from tests.operator_cases import mix, mixer_inputs

CUTS = [(0, 10), (0, 0, 7, 8, 500), (0, 5, 5, 5, 6), (0, 0)]
RUNNERS = ["team", "pool"]


@pytest.fixture(params=RUNNERS)
def runner(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "pool":
        monkeypatch.setattr(threads, "run_on_team", lambda *_: False)
    return str(request.param)


@pytest.fixture(autouse=True)
def _restore_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("runner")
def test_every_job_is_done_once() -> None:
    for count, cuts, heads in product((1, 2, 3, 5), CUTS, (0, 1, 2, 12)):
        torch.set_num_threads(count)
        done: Counter[int] = Counter()
        in_threads(lambda first, last, done=done: done.update(range(first, last)), heads, cuts)
        assert done == Counter(range(heads * (len(cuts) - 1)))


@pytest.mark.usefixtures("runner")
def test_each_thread_has_scratch_of_its_own() -> None:
    torch.set_num_threads(3)
    users: dict[int, set[int]] = {}
    made: list[list[int]] = []

    def scratch() -> list[list[int]]:
        made.append([])
        return [made[-1]]

    def work(own: list[int], first: int, last: int) -> None:
        own.extend(range(first, last))
        users.setdefault(id(own), set()).add(threading.get_ident())

    in_threads(work, 40, (0, 10), scratch)
    assert sorted(job for own in made for job in own) == list(range(40))
    assert len(made) <= 3
    assert all(len(threads) == 1 for threads in users.values())


@pytest.mark.usefixtures("runner")
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_errors_are_raised_where_the_call_was_made(error: type[BaseException]) -> None:
    torch.set_num_threads(2)

    def work(first: int, last: int) -> None:
        if first <= 5 < last:
            raise error("of job 5")

    for _ in range(3):
        with pytest.raises(error, match="of job 5"):
            in_threads(work, 12, (0, 10))
    done: list[int] = []
    in_threads(lambda first, last: done.extend(range(first, last)), 12, (0, 10))
    assert sorted(done) == list(range(12))


@pytest.mark.usefixtures("runner")
def test_jobs_may_start_jobs() -> None:
    torch.set_num_threads(2)
    done: Counter[int] = Counter()
    in_threads(
        lambda first, last: in_threads(lambda *inner: done.update(range(*inner)), 10 * (last - first), (0, 3)),
        4, (0, 10),
    )  # fmt: skip
    assert done.total() == 40


def test_all_ways_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The team without Python, and eight callers at once; the team with Python, a pool, one thread; both ways."""
    inputs = {name: t.requires_grad_() for name, t in mixer_inputs(300, torch.float32, 2, 3, 16, 16).items()}

    def run() -> list[torch.Tensor]:
        y = mix(inputs, "exponential+cache", backend="cpu")
        return [y.detach(), *torch.autograd.grad(y, list(inputs.values()), torch.ones_like(y))]

    torch.set_num_threads(1)
    expected = run()
    torch.set_num_threads(2)
    results = [run()]
    callers = [threading.Thread(target=lambda: results.append(run())) for _ in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    for way in ("_run_compiled", "run_on_team"):
        monkeypatch.setattr(threads, way, lambda *_: False)
        results.append(run())
    assert len(results) == 11
    assert all(torch.equal(a, b) for result in results for a, b in zip(result, expected, strict=True))


@pytest.mark.parametrize("team", [1, 2, 5])
def test_a_team_takes_every_range_once(team: int) -> None:
    """By itself, whatever its size: with fewer threads than have scratch, as nested calls get, and with more."""
    functions = openmp.team_functions()
    if functions is None:
        pytest.skip("torch has no team of threads here")
    decay, x = torch.rand(2, 12, 40, 16, dtype=torch.float64)
    sums = torch.zeros_like(x)
    arrays = (decay, x, torch.empty(0, dtype=torch.float64), sums)
    bound = Kernel("scan.forward").bind(*map(memory_of, arrays), 40, 16)
    ranges = np.array([(0, 5), (5, 6), (6, 6), (6, 12)], dtype=np.int64).tobytes()
    call = bound.for_team([(), (), ()], ranges, functions.thread_number)
    assert call is not None
    openmp.run_compiled(*call, team)
    bound.check(call[1])
    expected = x.clone()
    for i in range(1, 40):
        expected[:, i] += decay[:, i] * expected[:, i - 1]
    torch.testing.assert_close(sums, expected, rtol=1e-12, atol=0)


def test_a_kernel_that_fails_on_a_team_is_an_error() -> None:
    bound = Kernel("scan.forward").bind()
    data = (ctypes.c_char * 48)()
    bound.check(data)
    data[8 * TEAM_HEADER.index("status")] = 1
    with pytest.raises(RuntimeError, match=r"kernel scan.forward failed: expected status 0."):
        bound.check(data)


FORKED = """
import os, sys, torch
import resolvent as rv
torch.set_num_threads(2)
x, q, k = torch.randn(3, 1, 4, 200, 16)
def run(): return rv.mix(x, "quadratic+cache", a=(q, k), b=(q, k), gate=0.5)
expected = run()  # and so the team exists
x @ x.transpose(-1, -2)
child = os.fork()
if child == 0:
    os._exit(0 if torch.equal(run(), expected) else 1)
_, status = os.waitpid(child, 0)
class Mixed(torch.utils.data.Dataset):
    def __len__(self): return 4
    def __getitem__(self, index): return run()
for batch in torch.utils.data.DataLoader(Mixed(), num_workers=2, multiprocessing_context="fork"):
    assert torch.equal(batch[0], expected)
assert torch.equal(run(), expected)
sys.exit(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_forked_children_work() -> None:
    """Where the parent's team is gone, and to call it would wait for ever; in workers of a DataLoader, too."""
    subprocess.run([sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKED], check=True, timeout=300)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_no_openmp_library_is_loaded() -> None:
    """Torch's own is used, which was loaded before."""
    openmp._parallel.cache_clear()
    before = set(openmp._in_process())
    mix(mixer_inputs(200, torch.float32, 2, 3, 16, 16), "exponential", backend="cpu")
    assert set(openmp._in_process()) == before
    assert openmp.library() in before


@pytest.mark.parametrize("info", ["ATen parallel backend: native thread pool", ""])
def test_without_openmp_there_is_a_pool(info: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.__config__, "parallel_info", lambda: info)
    assert openmp._loaded() is None


def test_a_library_that_torch_does_not_use_is_never_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    openmp._parallel.cache_clear()
    monkeypatch.setattr(openmp, "_loaded", lambda: Path("/no/such/libgomp.so.1"))
    try:
        assert openmp._parallel() is None
        assert openmp.library() is None
        assert not openmp.run_on_team(lambda: None, 2)
    finally:
        openmp._parallel.cache_clear()

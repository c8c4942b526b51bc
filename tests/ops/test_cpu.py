"""The `cpu` backend: the same bits whatever threads, registers and blocks there are; memory, errors, forks."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
import torch

import resolvent as rv
from resolvent.ops.cpu import layout, openmp, threads
from resolvent.ops.cpu.threads import in_threads
from tests.operator_cases import Inputs, Spec, assert_all_close, gradients, mix, mixer_inputs


@pytest.fixture(autouse=True)
def _restore_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def run(inputs: Inputs, spec: Spec) -> list[torch.Tensor]:
    y, found = gradients(lambda t: mix(t, spec, backend="cpu"), inputs)
    return [y, *found.values()]


def same(found: list[torch.Tensor], expected: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_all_ways_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The team without Python, and eight callers at once; the team with Python, a pool, one thread; both ways."""
    inputs, spec = mixer_inputs(300, torch.float32, 2, 3, 16, 16), "exponential+cache"
    torch.set_num_threads(1)
    expected = run(inputs, spec)
    torch.set_num_threads(2)
    results = [run(inputs, spec)]
    callers = [threading.Thread(target=lambda: results.append(run(inputs, spec))) for _ in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    for way in ("_run_compiled", "run_on_team"):
        monkeypatch.setattr(threads, way, lambda *_: False)
        results.append(run(inputs, spec))
    assert len(results) == 11
    assert all(same(result, expected) for result in results)


def test_registers_do_not_change_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a bit: channels do not mix."""
    inputs, results = mixer_inputs(70, torch.float32, 1, 2, 64, 64), []
    for registers in (16, 32):
        monkeypatch.setattr(layout, "vector_registers", lambda registers=registers: registers)
        results.append(run(inputs, "exponential"))
    assert same(*results)


def test_very_wide_rows_are_computed_in_smaller_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["resolvent.ops.cpu.mix"], "_LARGEST_AREA", 1000)
    p = rv.explicit(lambda i: range(i) if i % 100 == 99 else [i - 1][:i])
    inputs = mixer_inputs(230, torch.float64, 1, 2, 8, 8)
    found, exact = (gradients(lambda t, b=b: mix(t, p, backend=b), inputs) for b in ("cpu", "reference"))
    assert_all_close(found, exact)


def test_results_outlive_later_calls() -> None:
    """Memory is reused when nobody can see it any more: not while there is a view, nor while autograd holds it."""
    inputs = {name: t.requires_grad_() for name, t in mixer_inputs(3000, torch.float32, 2, 3, 16, 16).items()}
    y = mix(inputs, "exponential")
    assert y.nbytes >= 1 << 20
    view = mix(inputs, "exponential").detach()[0, 1, 5:9]
    kept, seen = y.detach().clone(), view.clone()
    grads = torch.autograd.grad(y, list(inputs.values()), torch.ones_like(y), retain_graph=True)
    copies = [g.clone() for g in grads]
    for _ in range(3):
        mix({k: t.detach() * 2 for k, t in inputs.items()}, "exponential")
    assert torch.equal(y.detach(), kept)
    assert torch.equal(view, seen)
    assert same(grads, copies)
    assert same(torch.autograd.grad(y, list(inputs.values()), torch.ones_like(y)), copies)


@pytest.mark.parametrize("runner", ["team", "pool"])
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_errors_are_raised_where_the_call_was_made(
    error: type[BaseException], runner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if runner == "pool":
        monkeypatch.setattr(threads, "run_on_team", lambda *_: False)
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

"""The fuzzer finds faults that are put there, and says how to repeat them."""

import os
import signal
import warnings
from functools import partial
from typing import Any

import pytest
from torch import Tensor

from fuzz import decoding, mixing
from fuzz.__main__ import KINDS, main
from fuzz.case import Case, Kinds, Outcome, kind_of
from fuzz.runner import Report, run_case
from resolvent.ops import portable
from resolvent.ops.cache import base
from resolvent.ops.registry import BACKENDS


def first_finding(kinds: Kinds, among: int) -> Outcome:
    outcomes = (run_case(kinds, 0, index) for index in range(among))
    return next(outcome for outcome in outcomes if outcome.finding)


class Faulty:
    """The right outputs; the gradient of kb is wrong in its fourth digit."""

    NAME = "faulty"
    refusal = staticmethod(lambda request: None if request.operation == "mix" else "faulty: mix alone")
    preference = staticmethod(lambda _: None)
    solve, step = staticmethod(portable.solve), staticmethod(portable.step)

    @staticmethod
    def mix(inputs: Any, *others: Any) -> Tensor:
        kb = inputs.kb
        return portable.mix(inputs._replace(kb=kb + 1e-3 * (kb - kb.detach())), *others)


def test_a_wrong_gradient_is_found(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(BACKENDS, "faulty", Faulty())
    monkeypatch.setattr(mixing, "_accepting", lambda *_: [name for name in ("torch", "faulty") if name in BACKENDS])
    monkeypatch.setattr(mixing, "draw_call", partial(mixing.draw_call, longest=40))
    kinds = {"mix": (mixing.mix, 1)}
    outcome = first_finding(kinds, 60)
    assert "faulty: dkb[" in outcome.finding
    assert "pattern: " in outcome.finding
    command = Report(0).command(outcome)
    assert command == f"python -m fuzz --seed 0 --case {outcome.index}"
    assert main(command.split()[3:], kinds) == 1
    assert outcome.finding.splitlines()[0] in capsys.readouterr().out
    monkeypatch.delitem(BACKENDS, "faulty")
    assert main(command.split()[3:], kinds) == 0


def test_a_cache_that_forgets_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Snapshots that are not restored."""
    monkeypatch.setattr(base, "_restored", lambda tensor, *_: tensor)
    monkeypatch.setattr(decoding, "_BACKENDS", ["torch"])  # which compiles nothing
    outcome = first_finding({"extend": (decoding.extend, 1)}, 200)
    assert "Difference: extend [" in outcome.finding
    assert "rewind" in outcome.finding or "detour" in outcome.finding


def test_a_case_follows_from_seed_and_index() -> None:
    def facts(seed: int, index: int) -> str:
        case = Case(seed, index)
        kind = kind_of(case, KINDS)
        call = mixing.draw_call(case)
        values = {name: t.double().nan_to_num().sum().item() for name, t in call.tensors.items()}
        return f"{kind} {values} { {name: str(fact) for name, fact in case.facts.items()} }"

    assert facts(1, 5) == facts(1, 5)
    assert len({facts(seed, index) for seed in (1, 2) for index in range(5)}) == 10


def test_a_warning_is_found() -> None:
    noisy = {"noisy": (lambda _: warnings.warn("overflow", RuntimeWarning, stacklevel=1), 1)}
    assert run_case(noisy, 0, 0).finding.startswith("RuntimeWarning: overflow")


def broken(case: Case) -> None:
    """Of five cases: a fault, a crash, and three that are well."""
    case.count("steps", 2)
    number = broken.calls = getattr(broken, "calls", -1) + 1  # type: ignore[attr-defined]
    if number == 1:
        raise KeyError("vocab_size")
    if number == 2:
        os.kill(os.getpid(), signal.SIGKILL)


def never(_: Case) -> None:
    raise AssertionError


def test_a_run_reports_all_and_goes_on_after_a_crash(capfd: pytest.CaptureFixture[str]) -> None:
    """The second child counts its calls anew: it fails in its second case, too."""
    assert main(["--seed", "7", "--cases", "5"], {"broken": (broken, 1)}) == 1
    out = capfd.readouterr().out
    assert "finding: python -m fuzz --seed 7 --case 1\nKeyError: 'vocab_size'" in out
    assert "finding: python -m fuzz --seed 7 --case 2\nthe process ended" in out
    assert "finding: python -m fuzz --seed 7 --case 4\nKeyError: 'vocab_size'" in out
    assert out.endswith("seed 7: 5 cases (4 broken, 1 crash), 8 steps, 3 findings\n")


def test_only_some_kinds(capfd: pytest.CaptureFixture[str]) -> None:
    kinds = {"mix": (never, 1), "counted": (partial(Case.count, what="steps"), 1)}
    assert main(["--seed", "3", "--cases", "4", "--only", "counted"], kinds) == 0
    assert capfd.readouterr().out == "seed 3: 4 cases (4 counted), 4 steps, 0 findings\n"

"""The fuzzers find faults that are put there, and say how to repeat them."""

import json
import os
import signal
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

import resolvent as rv
from fuzz import decoding, mixing, readers, runner
from fuzz.__main__ import main
from fuzz.case import Case, Fuzzer, Outcome
from fuzz.fuzzers import FILES, FUZZERS, OPERATOR
from fuzz.mutate import damage, distort, dump
from fuzz.permitted import permitted
from fuzz.runner import Report, run, run_case
from resolvent.ops import portable
from resolvent.ops.cache import base
from resolvent.ops.registry import BACKENDS


def only(fuzzer: Fuzzer, kind: str) -> Fuzzer:
    """The same cases of one kind, without files to prepare."""
    return Fuzzer(fuzzer.name, {kind: fuzzer.kinds[kind]})


def first_finding(fuzzer: Fuzzer, among: int) -> Outcome:
    outcomes = (run_case(fuzzer, 0, index) for index in range(among))
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
    fuzzer = only(OPERATOR, "mix")
    outcome = first_finding(fuzzer, 60)
    assert "faulty: dkb[" in outcome.finding
    assert "pattern: " in outcome.finding
    command = Report("operator", 0).command(outcome)
    assert command == f"python -m fuzz operator --seed 0 --case {outcome.index}"
    assert main(command.split()[3:], {"operator": fuzzer}) == 1
    assert outcome.finding.splitlines()[0] in capsys.readouterr().out
    monkeypatch.delitem(BACKENDS, "faulty")
    assert main(command.split()[3:], {"operator": fuzzer}) == 0


def test_a_cache_that_forgets_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Snapshots that are not restored."""
    monkeypatch.setattr(base, "_restored", lambda tensor, *_: tensor)
    monkeypatch.setattr(decoding, "_BACKENDS", ["torch"])  # which compiles nothing
    outcome = first_finding(only(OPERATOR, "extend"), 200)
    assert "Difference: extend [" in outcome.finding
    assert "rewind" in outcome.finding or "detour" in outcome.finding


def test_a_reader_with_a_foreign_exception_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "read_records", lambda _: {}["batch"])
    assert run_case(only(FILES, "record"), 0, 0).finding.startswith("KeyError: 'batch'")


def test_what_counts_is_who_raises() -> None:
    """A ValueError of the package's own `raise` is permitted; one that Python raises inside the package is not."""
    made: dict[str, Any] = {}
    code = "def own(): raise ValueError('expected a size')\ndef foreign(): int('x')"
    exec(compile(code, str(Path(rv.__file__).parent / "made_up.py"), "exec"), made)
    with permitted(ValueError) as result:
        made["own"]()
    assert result.refused
    with pytest.raises(ValueError, match="invalid literal"), permitted(ValueError):
        made["foreign"]()
    with pytest.raises(KeyError), permitted(ValueError):
        raise KeyError


def test_a_case_follows_from_seed_and_index() -> None:
    def facts(seed: int, index: int) -> str:
        case = Case(seed, "operator", index)
        kind = OPERATOR.kind(case)
        call = mixing.draw_call(case)
        values = {name: t.double().nan_to_num().sum().item() for name, t in call.tensors.items()}
        return f"{kind} {values} { {name: str(fact) for name, fact in case.facts.items()} }"

    assert facts(1, 5) == facts(1, 5)
    assert len({facts(seed, index) for seed in (1, 2) for index in range(5)}) == 10


def test_a_case_that_never_ends_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(_: Case) -> None:
        while True:
            pass

    monkeypatch.setattr(runner, "CPU_SECONDS", 0.1)
    outcome = run_case(Fuzzer("operator", {"endless": (endless, 1)}), 0, 0)
    assert outcome.finding.startswith("TooSlow: more than 0.1 seconds of CPU time")
    assert signal.getitimer(signal.ITIMER_PROF)[0] == 0


def test_a_warning_is_found() -> None:
    noisy = Fuzzer("operator", {"noisy": (lambda _: warnings.warn("overflow", RuntimeWarning, stacklevel=1), 1)})
    assert run_case(noisy, 0, 0).finding.startswith("RuntimeWarning: overflow")


def broken(case: Case) -> None:
    """Of five cases: a fault, a crash, and three that are well."""
    case.count("steps", 2)
    number = broken.calls = getattr(broken, "calls", -1) + 1  # type: ignore[attr-defined]
    if number == 1:
        raise KeyError("vocab_size")
    if number == 2:
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_run_reports_all_and_goes_on_after_a_crash(capsys: pytest.CaptureFixture[str]) -> None:
    """The second child counts its calls anew: it fails in its second case, too."""
    fuzzers = {"files": Fuzzer("files", {"reader": (broken, 1)})}
    assert main(["--seed", "7", "--cases", "5", "--json"], fuzzers) == 1
    out, err = capsys.readouterr()
    (report,) = json.loads(out)
    assert [(f["case"], f["kind"]) for f in report["findings"]] == [(1, "reader"), (2, "crash"), (4, "reader")]
    assert "exit code -9" in report["findings"][1]["finding"]
    assert (report["cases"], report["counts"]) == ({"reader": 4, "crash": 1}, {"steps": 8})
    assert "seed 7" in err
    assert "finding: python -m fuzz files --seed 7 --case 1\nKeyError: 'vocab_size'" in err
    assert "5 cases (1 crash, 4 reader), 8 steps, 3 findings" in err


def test_only_some_kinds() -> None:
    wanted = {kind for fuzzer in FUZZERS.values() for kind in fuzzer.kinds}
    assert len(wanted) == sum(len(fuzzer.kinds) for fuzzer in FUZZERS.values())  # `--only` names them without a fuzzer
    light = Fuzzer("files", {kind: FILES.kinds[kind] for kind in ("size", "rule")})
    report = run(light, 3, lambda report: report.cases.total() < 4, ("size",))
    assert report.cases == {"size": 4}
    with pytest.raises(SystemExit):
        main(["operator", "--only", "size"])


def test_damage_is_damage() -> None:
    """Values and bytes change, what was given does not; JSON of any depth can be written."""
    values = {"a": [1, 2, {"b": None}], "c": "text"}
    before = json.dumps(values)
    changed = {dump(distort(Case(0, "x", i), values)) for i in range(800)}
    assert json.dumps(values) == before
    assert len(changed) > 50
    assert any(content.count(b"[") > 1000 for content in changed)
    assert len({damage(Case(0, "x", i), b"some bytes") for i in range(50)}) > 30

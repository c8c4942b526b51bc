"""One factor at a time: what is run, and that nothing else differs."""

import json
from pathlib import Path
from typing import Any

import pytest

from resolvent.studies.factors import UNCHANGED, cells
from tests.commands import command
from tests.small_runs import QUICK


def differences(one: dict[str, Any], other: dict[str, Any]) -> set[str]:
    return {
        f"{part}.{key}" for part in one for key in one[part] if one[part][key] != other[part][key]
    }  # fmt: skip


def test_only_the_factor_changes(tmp_path: Path) -> None:
    found = cells("recall", ["dense"], ["model.rope=100,1000", "gate=mamba", "first=none", "train.batch=8"], tmp_path)
    assert list(found) == [
        UNCHANGED, "model.rope=100", "model.rope=1000", "gate=mamba", "first=none", "train.batch=8",
    ]  # fmt: skip
    base = found[UNCHANGED][0].config.to_dict()
    changed = {setting: differences(own[0].config.to_dict(), base) for setting, own in found.items()}
    assert changed == {
        UNCHANGED: set(),
        "model.rope=100": {"model.rope"},
        "model.rope=1000": {"model.rope"},
        "gate=mamba": {"model.rule"},
        "first=none": {"model.pattern", "model.rule"},
        "train.batch=8": {"train.batch"},
    }
    assert {cell.seed for own in found.values() for cell in own} == {100, 101}
    assert len({cell.folder for own in found.values() for cell in own}) == 12


@pytest.mark.parametrize(("factor", "message"), [
    ("model.rope", "expected a factor such as model.rope=100,10000"),
    ("model.rope=100,", "expected a factor such as"),
    ("model.rop=100", "unknown setting 'model.rop'.*Did you mean 'rope'"),
    ("gate=wide", "gate"),
])  # fmt: skip
def test_bad_factors(tmp_path: Path, factor: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cells("copy", ["dense"], [factor], tmp_path)


@pytest.mark.usefixtures("cells_run_here")
def test_the_command(tmp_path: Path) -> None:
    changes = [word for change in QUICK for word in ("--set", change)]
    done = command("study", "factors", "copy", "--structures", "dense", "--vary", "train.learning_rate=0.001",
                   "--seeds", "1", "--out", str(tmp_path), *changes, "--json")  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert list(found) == [UNCHANGED, "train.learning_rate=0.001"]
    assert all(0 <= score <= 1 for scores in found.values() for score in scores["dense"])

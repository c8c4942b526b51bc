"""Records of runs: what was run, with what, how long, and what came out. Reports need nothing else; no torch here."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import NamedTuple, final

from resolvent.errors import SettingError
from resolvent.fields import (
    Amount,
    Count,
    as_integers,
    as_list,
    as_mapping,
    as_row,
    as_text,
    check_format,
    check_names,
    check_types,
    field_names,
)
from resolvent.files import write_text
from resolvent.text import Reach
from resolvent.train.config import RunConfig
from resolvent.train.evaluations import EVALUATIONS, Evaluation, TextEvaluation
from resolvent.untrusted import parse, read, read_lines

FILE = "run.json"
FORMAT, VERSION = "resolvent-run", 2
_PACKAGES = ("resolvent", "torch", "numpy", "numba")
_OPTIONAL = ("lengths", "extended_at", "reach")  # left out where there is nothing to say


class RecordError(SettingError):
    """A file that is not a record of a run, or a damaged one."""


class CurvePoint(NamedTuple):
    """An evaluation during training; the value is the accuracy or the perplexity."""

    step: int
    loss: float
    value: float


@final
@dataclass(frozen=True)
class Environment:
    """Versions, machine and commit."""

    python: str
    packages: Mapping[str, str]
    machine: str
    commit: str | None

    def __post_init__(self) -> None:
        check_types(self)

    @classmethod
    def current(cls) -> Environment:
        machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs"
        packages = {name: metadata.version(name) for name in _PACKAGES}
        return cls(platform.python_version(), packages, machine, _commit())

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> Environment:
        check_names(values, field_names(cls), "an environment", optional=())
        packages = {
            name: as_text(version, name) for name, version in as_mapping(values["packages"], "packages").items()
        }
        make: Callable[..., Environment] = cls  # which checks its values
        return make(**{**values, "packages": packages})


@final
@dataclass(frozen=True)
class Record:
    """A finished run. `lengths` has evaluations in other contexts than the one trained on, where there are any;
    `extended_at` the steps after which it was given more of them than it was begun with; `reach`, what its text offers
    to an n-gram cache, if that was measured. `source` is the file, and the line, that it was read from.
    """

    config: RunConfig
    environment: Environment
    parameters: Count
    seconds: Amount
    steps: Count
    tokens: Count
    skipped_steps: Count
    solved_at: Count | None
    evaluation: Evaluation
    curve: tuple[CurvePoint, ...]
    lengths: tuple[TextEvaluation, ...] = ()
    extended_at: tuple[int, ...] = ()
    reach: Reach | None = None
    source: str = dataclasses.field(default="", compare=False, repr=False)

    def __post_init__(self) -> None:
        check_types(self)

    @property
    def seed(self) -> int:
        return self.config.train.seed

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / max(self.seconds, 1e-9)

    def __repr__(self) -> str:
        return f"Record({self.config.title}, seed {self.seed}: {self.evaluation}; {self.steps:,} steps)"

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON."""
        values = {name: getattr(self, name) for name in _stored()} | {
            "config": self.config.to_dict(),
            "environment": dataclasses.asdict(self.environment),
            "evaluation": self.evaluation.to_dict(),
            "lengths": [each.to_dict() for each in self.lengths],
            "reach": None if self.reach is None else self.reach.to_dict(),
        }
        for name in _OPTIONAL:
            if not values[name]:
                del values[name]
        return {"format": FORMAT, "version": VERSION, **values}

    @classmethod
    def from_dict(cls, content: object) -> Record:
        values = as_mapping(content, "a run's record")
        check_format(values, FORMAT, VERSION, "a run's record")
        check_names(values, _stored(), "a run's record", optional=_OPTIONAL)
        config = RunConfig.from_dict(as_mapping(values["config"], "config"))
        evaluation = EVALUATIONS[config.task.evaluated_on]
        made = {
            "config": config,
            "environment": Environment.from_dict(as_mapping(values["environment"], "environment")),
            "evaluation": evaluation.from_dict(as_mapping(values["evaluation"], "evaluation")),
            "curve": curve_from(values["curve"]),
            "lengths": tuple(
                TextEvaluation.from_dict(as_mapping(each, "an evaluation"))
                for each in as_list(values.get("lengths", ()), "lengths")
            ),
            "extended_at": tuple(as_integers(values.get("extended_at", ()), "extended_at")),
            "reach": None if values.get("reach") is None else Reach.from_dict(values["reach"]),
        }
        make: Callable[..., Record] = cls  # which checks its values
        return make(**{**values, **made})

    def write(self, path: Path) -> None:
        """All of it, or the file as it was."""
        write_text(path, json.dumps(self.to_dict(), indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> Record:
        try:
            return dataclasses.replace(cls.from_dict(read(path)), source=str(path))
        except ValueError as error:
            raise RecordError(f"{path} is damaged, or not a record: {error} Move it away to run again.") from None


def _stored() -> list[str]:
    return [name for name in field_names(Record) if name != "source"]


def write_records(records: Sequence[Record], path: Path) -> None:
    """One record a line."""
    lines = (json.dumps(record.to_dict(), separators=(",", ":")) + "\n" for record in records)
    path.write_text("".join(lines), encoding="utf-8")


def read_records(path: Path) -> list[Record]:
    """The records of a file with one a line."""
    records = []
    for number, line in read_lines(path):
        try:
            records.append(dataclasses.replace(Record.from_dict(parse(line)), source=f"{path}, line {number}"))
        except ValueError as error:
            raise RecordError(f"{path}, line {number}: expected a run's record in JSON ({error}).") from None
    if not records:
        raise RecordError(f"{path} is empty: expected records of runs, one a line.")
    return records


def curve_from(values: object) -> tuple[CurvePoint, ...]:
    points = [as_row(point, "a point of the curve", 1, 3) for point in as_list(values, "curve")]
    return tuple(CurvePoint(int(step), loss, value) for step, loss, value in points)


def _commit() -> str | None:
    """The commit of the source, if a repository tracks it; a repository around an installed package does not."""
    here = Path(__file__)
    tracked = _git(here.parent, "ls-files", "--error-unmatch", here.name)
    return None if tracked is None else _git(here.parent, "rev-parse", "--short", "HEAD")


def _git(folder: Path, *arguments: str) -> str | None:
    """What git says of a folder, or None if it fails or is missing. Hooks of another repository set GIT_DIR to it."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10, check=False, env=own
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None

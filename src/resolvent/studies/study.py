"""What a study is: what is run, and what its records show. A new one is a `Study`, and a line in `registry`.

Nothing here needs torch, so that reports are made from records alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from resolvent.errors import SettingError, closest
from resolvent.studies.grade import Grade
from resolvent.studies.grid import Cell
from resolvent.train.record import Record

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Option = Literal[
    "corpus", "rules", "first_seed", "rates", "tasks", "times", "records", "ropes", "evaluated_ropes", "tokens"
]


@dataclass(frozen=True)
class TextTable:
    """Cells as text. The first `names` columns are names; the others are numbers."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    names: int = 1


@dataclass(frozen=True)
class Graded:
    """A statement of the paper, if it is in words, what is compared to test it, and the grade.

    setting  where it was tested, of a study with several
    """

    statement: str
    comparison: str
    grade: Grade
    setting: str = ""


@dataclass(frozen=True)
class Claims:
    """Graded statements, under a title, the rule that they were graded by, and whose they are."""

    title: str
    rule: str
    graded: tuple[Graded, ...]
    source: str = "the paper"

    @property
    def tested(self) -> Claims:
        """Those whose runs exist, at one setting or another."""
        exist = {(each.statement, each.comparison) for each in self.graded if each.grade != "not run"}
        return replace(self, graded=tuple(e for e in self.graded if (e.statement, e.comparison) in exist))

    @property
    def settings(self) -> tuple[str, ...]:
        """Where statements were tested, in order; a single one has no name."""
        return tuple(dict.fromkeys(each.setting for each in self.graded))

    @property
    def rows(self) -> list[tuple[str, str, list[Grade]]]:
        """Statement, comparison, and the grade in each of `settings`."""
        grades = {(each.statement, each.comparison, each.setting): each.grade for each in self.graded}
        pairs = dict.fromkeys((each.statement, each.comparison) for each in self.graded)
        return [(*pair, [grades.get((*pair, setting), "not run") for setting in self.settings]) for pair in pairs]


@dataclass(frozen=True)
class StudyFigure:
    """A titled figure, drawn when asked for; `published` ones are shown in documents and written as files.

    caption  what to see in it, in a sentence
    """

    title: str
    draw: Callable[[], Figure]
    published: bool = False
    caption: str = ""


def figure_name(name: str, number: int) -> str:
    """The file of a published figure, without its ending; the first has the name of its study or records."""
    return name if number == 0 else f"{name}-{number + 1}"


@dataclass(frozen=True)
class StudyReport:
    """What records show.

    tables  the first one is the result, others break it down
    brief   the result in 80 columns, with `captions` below
    notes   what the columns mean, and how it was made
    """

    tables: tuple[TextTable, ...]
    brief: TextTable
    captions: tuple[str, ...]
    notes: tuple[str, ...]
    claims: Claims
    figures: tuple[StudyFigure, ...]


@dataclass(frozen=True)
class Selection:
    """What of a study is run, as the options of its command say; None leaves it to the study."""

    preset: str | None = None
    corpus: Path | None = None
    structures: Sequence[str] | None = None
    rules: Sequence[str] | None = None
    tasks: Sequence[str] | None = None
    seeds: int | None = None
    first_seed: int | None = None
    rates: Path | None = None
    times: Sequence[int] | None = None
    records: Sequence[Path] | None = None
    ropes: Sequence[str] | None = None
    evaluated_ropes: Sequence[str] | None = None
    tokens: int | None = None
    changes: Sequence[str] = ()
    out: Path | None = None


Measure = Callable[[Callable[[], None]], list[Record]]


@dataclass(frozen=True)
class StudyPlan:
    """The runs of a study, and the folder of its reports; the preset says how large it is.

    measure  what is measured of the finished runs, if anything, in so many `measurements`: it calls its argument after
             each, and returns the records of those that are finished
    """

    preset: str
    about: str
    folder: Path
    cells: list[Cell]
    measure: Measure | None = None
    measurements: int = 0


@dataclass(frozen=True, kw_only=True)
class Study(ABC):
    """A table or a figure of the paper. Its command and its published results follow from it.

    name     of the command, and of files of records: NAME-….jsonl
    title    of tables and figures
    about    the help text of the command
    page     the file of its page of HTML
    options  of the command, beside those that all studies have: preset, structures, seeds, set, out
    presets  their names and what each is; the first one is the default
    included other files of records, by a pattern of their names, that published reports include
    """

    name: str
    title: str
    about: str
    page: str
    options: tuple[Option, ...] = ()
    included: str = ""
    presets: tuple[tuple[str, str], ...]

    def preset_of(self, selection: Selection) -> tuple[str, str]:
        """The preset that is selected, and what it is."""
        known, name = dict(self.presets), selection.preset or self.presets[0][0]
        if name not in known:
            raise SettingError(
                f"unknown preset '{name}' of {self.name}: expected {', '.join(known)}.{closest(name, known)}"
            )
        return name, known[name]

    @abstractmethod
    def plan(self, selection: Selection) -> StudyPlan:
        """What is to be run."""

    @abstractmethod
    def report(self, records: Sequence[Record]) -> StudyReport:
        """What the records of its runs show."""


def provenance(records: Sequence[Record]) -> str:
    """What records were made with, in a sentence for notes."""
    hours = sum(record.seconds for record in records) / 3600
    environment = records[0].environment
    commits = " and ".join(dict.fromkeys(str(record.environment.commit) for record in records))
    torch = environment.packages.get("torch", "(unknown)")
    return f"{hours:.1f} hours of one core in all. torch {torch}, {environment.machine}, commit {commits}."

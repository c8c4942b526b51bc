"""Published results: tables and figures from committed records, between marks in a document written by hand."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from resolvent.bench.record import read_bench_records
from resolvent.errors import SettingError, closest
from resolvent.studies.registry import STUDIES
from resolvent.studies.render import markdown
from resolvent.studies.speed import sections
from resolvent.studies.study import Study
from resolvent.train.record import Record, read_records

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MARKED = re.compile(r"(<!-- records: ([\w.-]+)(?: ([\w.-]+))? -->\n).*?(<!-- end -->)", re.DOTALL)
_BENCH = "bench"  # what names of records of benchmarks begin with


@dataclass(frozen=True)
class Marked:
    """What goes between two marks: a text, and the figures that it shows."""

    text: str
    figures: tuple[Figure, ...] = ()


def regenerate(document: str, folder: Path) -> tuple[str, dict[str, Figure]]:
    """The document with what stands between its marks made from the records in the folder; and the figures it shows.

    A mark names a file of records, `<!-- records: table1-small -->` … `<!-- end -->`, and of benchmarks a section of
    them, `<!-- records: bench-two-cores generate -->`. What publishes a figure shows it as `figures/NAME.png`, a
    second one as `figures/NAME-2.png`.
    """
    marks = list(dict.fromkeys((match[2], match[3] or "") for match in _MARKED.finditer(document)))
    if not marks:
        raise SettingError("expected marks '<!-- records: NAME -->' and '<!-- end -->' in the document, got none.")
    made = {(name, section): _made(name, section, folder) for name, section in marks}
    figures = {
        figure_name(name, number): figure
        for (name, _), each in made.items()
        for number, figure in enumerate(each.figures)
    }
    text = _MARKED.sub(lambda match: match[1] + made[match[2], match[3] or ""].text + match[4], document)
    return text, figures


def _made(name: str, section: str, folder: Path) -> Marked:
    """Of the study, or the benchmark, that the name of the records begins with."""
    kind, path = name.partition("-")[0], folder / f"{name}.jsonl"
    if kind == _BENCH:
        return _of_benchmarks(name, section, path)
    if kind not in STUDIES:
        known = [*STUDIES, _BENCH]
        raise SettingError(
            f"unknown records '{name}': expected {', '.join(f'{each}-…' for each in known)}.{closest(kind, known)}"
        )
    if section:
        raise SettingError(f"records of studies have no sections: expected '{name}' alone, got '{name} {section}'.")
    report = STUDIES[kind].report(_records_of(STUDIES[kind], path))
    published = [figure for figure in report.figures if figure.published]
    shown = "".join(
        _picture(figure.title, figure_name(name, number), figure.caption) for number, figure in enumerate(published)
    )
    return Marked(shown + markdown(report), tuple(figure.draw() for figure in published))


def _records_of(study: Study, path: Path) -> list[Record]:
    """The records of the file; then those beside it that the study includes, of runs that the file does not have."""
    records = read_records(path)
    others = (
        [each for other in sorted(path.parent.glob(study.included)) for each in read_records(other)]
        if study.included
        else []
    )
    return [*records, *(each for each in others if all(each.config != record.config for record in records))]


def _of_benchmarks(name: str, section: str, path: Path) -> Marked:
    records = read_bench_records(path)
    if section == sections.FIGURE:
        return Marked(_picture(sections.FIGURE_TITLE, name), (sections.figure(records),))
    return Marked(sections.section(records, section))


def figure_name(name: str, number: int) -> str:
    """The file of a published figure, without its ending; the first has the name of the records."""
    return name if number == 0 else f"{name}-{number + 1}"


def _picture(title: str, name: str, caption: str = "") -> str:
    return f"![{title}](figures/{name}.png)\n\n" + (f"*{caption}*\n\n" if caption else "")

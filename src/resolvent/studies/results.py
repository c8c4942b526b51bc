"""Published results: tables and figures from committed records, between marks in a document written by hand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from resolvent.errors import SettingError, closest
from resolvent.studies.registry import STUDIES
from resolvent.studies.render import markdown
from resolvent.studies.study import Study, StudyReport
from resolvent.train.record import read_records

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MARKED = re.compile(r"(<!-- records: ([\w.-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def regenerate(document: str, folder: Path) -> tuple[str, dict[str, Figure]]:
    """The document with what stands between its marks made from the records in the folder; and the figures it shows.

    A mark names a file of records: `<!-- records: table1-small -->` … `<!-- end -->`. A study that publishes a figure
    shows it as `figures/NAME.png`.
    """
    names = dict.fromkeys(match[2] for match in _MARKED.finditer(document))
    if not names:
        raise SettingError("expected marks '<!-- records: NAME -->' and '<!-- end -->' in the document, got none.")
    reports = {name: _study(name).report(read_records(folder / f"{name}.jsonl")) for name in names}
    figures = {name: figure.draw() for name, report in reports.items() for figure in report.figures if figure.published}
    text = _MARKED.sub(lambda match: match[1] + _published(match[2], reports[match[2]]) + match[3], document)
    return text, figures


def _published(name: str, report: StudyReport) -> str:
    shown = [f"![{figure.title}](figures/{name}.png)\n\n" for figure in report.figures if figure.published]
    return "".join(shown) + markdown(report)


def _study(name: str) -> Study:
    """The study that records are of: what their name begins with."""
    study = name.partition("-")[0]
    if study not in STUDIES:
        names = ", ".join(f"{known}-…" for known in STUDIES)
        raise SettingError(f"unknown records '{name}': expected {names}.{closest(study, STUDIES)}")
    return STUDIES[study]

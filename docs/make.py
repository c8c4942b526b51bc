"""Tables and figures of the documents, made from the records in docs/records: the source of every number in them.

python -m docs.make [DOCUMENT ...]             make what stands between marks, and the figures it shows, anew
python -m docs.make --check [DOCUMENT ...]     write nothing; fail if a table would change or a figure is missing
python -m docs.make --drawings                 draw the paper's figures and the frontier anew
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from docs import speed
from docs.drawings.complexity import published_records_figure
from docs.drawings.formulation import formulation_figure
from docs.drawings.frontier import frontier_figure
from docs.drawings.sparsity import sparsity_figure
from resolvent.bench.record import read_bench_records
from resolvent.errors import SettingError, closest
from resolvent.report.figures import save
from resolvent.studies.registry import STUDIES
from resolvent.studies.render import markdown
from resolvent.studies.study import Study, figure_name
from resolvent.train.record import Record, read_records

DOCUMENTS = ("docs/results.md", "docs/bench.md", "README.md")
RECORDS = Path("docs/records")
DRAWINGS: dict[str, Callable[[], Figure]] = {
    "figure-1": formulation_figure,
    "figure-2": sparsity_figure,
    "figure-3": published_records_figure,
    "frontier": frontier_figure,
}
_MARKED = re.compile(r"(<!-- records: ([\w.-]+)(?: ([\w.-]+))? -->\n).*?(<!-- end -->)", re.DOTALL)
_BENCH = "bench"  # what names of records of benchmarks begin with
_COLORS = 256  # of a PNG: fewer would change those of the palette


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
    if section == speed.FIGURE:
        return Marked(_picture(speed.FIGURE_TITLE, name), (speed.figure(records),))
    return Marked(speed.section(records, section))


def _picture(title: str, name: str, caption: str = "") -> str:
    return f"![{title}](figures/{name}.png)\n\n" + (f"*{caption}*\n\n" if caption else "")


def make(documents: Sequence[str], *, check: bool) -> int:
    """Write the documents and their figures, or say which of them do not match the records: the exit code."""
    for document in map(Path, documents):
        before = document.read_text(encoding="utf-8")
        after, figures = regenerate(before, RECORDS)
        paths = {document.parent / "figures" / f"{name}.png": figure for name, figure in figures.items()}
        if check and (before != after or not all(path.exists() for path in paths)):
            print(f"{document} does not match {RECORDS}: run 'python -m docs.make {document}'", file=sys.stderr)
            return 1
        if not check:
            document.write_text(after, encoding="utf-8")
            for path, figure in paths.items():
                save(figure, path, colors=_COLORS)
        print(f"{document} {'matches' if check else 'is made from'} {RECORDS}")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m docs.make", description="Make documents from docs/records.")
    parser.add_argument("documents", nargs="*", metavar="DOCUMENT", help=f"default: {', '.join(DOCUMENTS)}")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a document would change")
    parser.add_argument("--drawings", action="store_true", help="draw the paper's figures and the frontier")
    chosen = parser.parse_args(arguments)
    if chosen.drawings:
        for name, draw in DRAWINGS.items():
            print(save(draw(), Path("docs/figures") / f"{name}.png", colors=_COLORS))
        return 0
    return make(chosen.documents or DOCUMENTS, check=chosen.check)


if __name__ == "__main__":
    sys.exit(main())

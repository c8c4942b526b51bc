"""Published results: tables and figures from committed records, between marks in a document written by hand."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from resolvent.patterns.errors import closest
from resolvent.report import language, table1
from resolvent.report.variants import variants

Maker = Callable[[Sequence[table1.Record]], str]
_MARKED = re.compile(r"(<!-- records: ([\w.-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def write_records(records: Sequence[table1.Record], path: Path) -> None:
    """One record a line."""
    path.write_text("".join(json.dumps(record, separators=(",", ":")) + "\n" for record in records))


def read_records(path: Path) -> list[dict[str, Any]]:
    """The records of a file, or a clear refusal."""
    found = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        try:
            record = json.loads(line)
            found.append({**record, "config": record["config"], "evaluation": record["evaluation"]})
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path}, line {number}: expected a run's record in JSON ({error!r}).") from error
    if not found:
        raise ValueError(f"{path} is empty: expected records of runs, one a line.")
    return found


def renewed(document: str, folder: Path) -> str:
    """The document with what stands between its marks made anew from the records in the folder.

    A mark names a file of records: `<!-- records: table1-small -->` … `<!-- end -->`. Where there is a figure, the text
    shows `figures/NAME.png`, which `figures` gives.
    """
    if not _MARKED.search(document):
        raise ValueError("expected marks '<!-- records: NAME -->' and '<!-- end -->' in the document, found none.")

    def made(found: re.Match[str]) -> str:
        study, name = _study(found[2]), found[2]
        shown = f"![{language.VIEWS[study].title}](figures/{name}.png)\n\n" if study in language.VIEWS else ""
        return found[1] + shown + MAKERS[study](read_records(folder / f"{name}.jsonl")) + found[3]

    return _MARKED.sub(made, document)


def figures(document: str, folder: Path) -> dict[str, Figure]:
    """What a document shows, by the names of its records."""
    names = {found[2]: _study(found[2]) for found in _MARKED.finditer(document)}
    return {
        name: language.VIEWS[study].figure(variants(read_records(folder / f"{name}.jsonl")))
        for name, study in names.items()
        if study in language.VIEWS
    }


def _study(name: str) -> str:
    """What records are of."""
    study = name.partition("-")[0]
    if study not in MAKERS:
        names = ", ".join(f"{known}-…" for known in MAKERS)
        raise ValueError(f"unknown records '{name}': expected {names}.{closest(study, MAKERS)}")
    return study


def _table1(records: Sequence[table1.Record]) -> str:
    return table1.markdown(table1.rows(records), records)


def _language(study: str) -> Maker:
    return lambda records: language.markdown(language.VIEWS[study], records)


MAKERS: dict[str, Maker] = {"table1": _table1, **{study: _language(study) for study in language.VIEWS}}

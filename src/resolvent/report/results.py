"""Published results: tables made anew from committed records, between marks in a document written by hand."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from resolvent.patterns.errors import closest
from resolvent.report import language, table1

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

    A mark names a file of records: `<!-- records: table1-small -->` … `<!-- end -->`.
    """
    if not _MARKED.search(document):
        raise ValueError("expected marks '<!-- records: NAME -->' and '<!-- end -->' in the document, found none.")

    def made(found: re.Match[str]) -> str:
        study = found[2].partition("-")[0]
        if study not in MAKERS:
            names = ", ".join(f"{name}-…" for name in MAKERS)
            raise ValueError(f"unknown records '{found[2]}': expected {names}.{closest(study, MAKERS)}")
        return found[1] + MAKERS[study](read_records(folder / f"{found[2]}.jsonl")) + found[3]

    return _MARKED.sub(made, document)


def _table1(records: Sequence[table1.Record]) -> str:
    return table1.markdown(table1.rows(records), records)


def _language(study: str) -> Maker:
    return lambda records: language.markdown(language.VIEWS[study], records)


MAKERS: dict[str, Maker] = {"table1": _table1, **{study: _language(study) for study in language.VIEWS}}

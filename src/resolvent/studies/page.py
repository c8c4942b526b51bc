"""One self-contained page of HTML: tables, figures inside, graded claims. The same for every study."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Iterable

from resolvent.studies.grade import Grade
from resolvent.studies.study import Claims, StudyFigure, StudyReport, TextTable

_GRADES: dict[Grade, str] = {
    "supported": "#2a7d4f",
    "contradicted": "#b3261e",
    "circumvented": "#3d5a80",
    "open": "#8a6d00",
    "not run": "#888",
}
_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;color:#1b1f24;max-width:1100px;margin:2rem auto;padding:0 1rem}"
    "table{border-collapse:collapse;font-variant-numeric:tabular-nums}td,th{padding:.3rem .8rem;text-align:right;"
    "border-bottom:1px solid #e3e6ea}td:first-child,th:first-child{text-align:left}img{max-width:100%}"
    "figure{margin:0;overflow-x:auto}figcaption{color:#6b7280;font-size:.9rem}"
    "figcaption{position:sticky;left:0}@media(max-width:800px){figure img{max-width:none;width:900px}}"
    ".wide{overflow-x:auto}.words td{text-align:left}h2{margin-top:2.2rem;font-size:1.15rem}"
)


def page(report: StudyReport, title: str) -> str:
    """The document."""
    content = [
        *map(_table, report.tables),
        *(f"<p>{html.escape(note)}</p>" for note in report.notes),
        *map(_picture, report.figures),
        _claims(report.claims),
    ]
    return (
        "<!doctype html><html lang='en'><meta charset='utf-8'><meta name='viewport' content='width=device-width'>"
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style><h1>{html.escape(title)}</h1>"
        f"{''.join(content)}</html>\n"
    )


def _table(table: TextTable) -> str:
    names = "".join(f"<th>{html.escape(name)}</th>" for name in table.head)
    body = "".join(f"<tr>{_cells(row)}</tr>" for row in table.rows)
    return f"<div class='wide'><table><thead><tr>{names}</tr></thead><tbody>{body}</tbody></table></div>"


def _picture(figure: StudyFigure) -> str:
    title, caption = html.escape(figure.title), html.escape(figure.caption)
    memory = io.BytesIO()
    figure.draw().savefig(memory, format="png", dpi=130, facecolor="white")
    picture = f"<img alt='{title}' src='data:image/png;base64,{base64.b64encode(memory.getvalue()).decode()}'>"
    return f"<h2>{title}</h2><figure>{picture}<figcaption>{caption}</figcaption></figure>"


def _claims(claims: Claims) -> str:
    """Under the rule they were graded by; nothing if none could be graded."""
    if not claims.tested.graded:
        return ""
    several = len(claims.settings) > 1
    names = "".join(f"<th>{html.escape(name)}</th>" for name in ("", "", *claims.settings))
    head = f"<thead><tr>{names}</tr></thead>" if several else ""
    rows = "".join(
        f"<tr>{_cells((statement, comparison) if several else filter(None, (statement, comparison)))}"
        f"{''.join(_grade(grade) for grade in grades)}</tr>"
        for statement, comparison, grades in claims.rows
    )
    return (
        f"<h2>{html.escape(claims.title)}</h2><p>{html.escape(claims.rule)}</p>"
        f"<div class='wide'><table class='words'>{head}<tbody>{rows}</tbody></table></div>"
    )


def _grade(grade: Grade) -> str:
    return f"<td style='color:{_GRADES[grade]}'>{grade}</td>"


def _cells(row: Iterable[str]) -> str:
    return "".join(f"<td>{html.escape(cell)}</td>" for cell in row)

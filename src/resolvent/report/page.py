"""One self-contained page of HTML: tables, figures inside, graded claims. The same for every study."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence

from matplotlib.figure import Figure

from resolvent.report.claims import Grade

COLOURS = ("#3d5a80", "#98a9c2", "#c8553d", "#e0a458", "#2a9d8f", "#7b2d8b", "#b58bc4", "#588157", "#a3b18a")
_GRADES: dict[Grade, str] = {
    "supported": "#2a7d4f",
    "contradicted": "#b3261e",
    "open": "#8a6d00",
    "not run": "#888",
}
_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;color:#1b1f24;max-width:1100px;margin:2rem auto;padding:0 1rem}"
    "table{border-collapse:collapse;font-variant-numeric:tabular-nums}td,th{padding:.3rem .8rem;text-align:right;"
    "border-bottom:1px solid #e3e6ea}td:first-child,th:first-child{text-align:left}img{max-width:100%}"
    ".wide{overflow-x:auto}.words td{text-align:left}h2{margin-top:2.2rem;font-size:1.15rem}"
)


def page(title: str, *parts: str) -> str:
    """The whole document; parts are HTML already."""
    return (
        "<!doctype html><html lang='en'><meta charset='utf-8'><meta name='viewport' content='width=device-width'>"
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style><h1>{html.escape(title)}</h1>"
        f"{''.join(parts)}</html>\n"
    )


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Names on the left, numbers on the right."""
    names = "".join(f"<th>{html.escape(name)}</th>" for name in head)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<div class='wide'><table><thead><tr>{names}</tr></thead><tbody>{body}</tbody></table></div>"


def notes(lines: Sequence[str]) -> str:
    return "".join(f"<p>{html.escape(line)}</p>" for line in lines if line)


def picture(name: str, figure: Figure) -> str:
    return f"<h2>{html.escape(name)}</h2><img alt='{html.escape(name)}' src='{_inline(figure)}'>"


def graded(title: str, rule: str, grades: Sequence[tuple[str, ...]]) -> str:
    """Claims, each in one or several cells with its grade in the last, under the rule they were graded by."""
    rows = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in claim) + f"<td style='color:{_colour(grade)}'>"
        f"{grade}</td></tr>"
        for *claim, grade in grades
    )  # fmt: skip
    return f"<h2>{html.escape(title)}</h2><p>{html.escape(rule)}</p><table class='words'><tbody>{rows}</tbody></table>"


def _colour(grade: str) -> str:
    return next(colour for name, colour in _GRADES.items() if name == grade)


def _inline(figure: Figure) -> str:
    memory = io.BytesIO()
    figure.savefig(memory, format="png", dpi=130, facecolor="white")
    return "data:image/png;base64," + base64.b64encode(memory.getvalue()).decode()

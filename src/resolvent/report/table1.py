"""Table 1 from records of runs: in the terminal, as Markdown and CSV, and as one page of HTML with figures."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table

from resolvent.analysis.congestion import Effort
from resolvent.analysis.profile import Profile, analyze, describe
from resolvent.report import page as html
from resolvent.report.claims import CLAIMS, PAPER, RULE
from resolvent.report.page import COLOURS

_TASKS = {"copy": "copy", "recall": "recall", "multihop": "multi-hop"}

_MANY_HOPS = 4
_SHORT = 128  # tokens up to which a search for routings takes no time

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Row:
    """A structure: what theory says of it at the longest sequence of the study, and what was found."""

    structure: str
    profile: Profile
    scores: dict[str, list[float]]  # task → accuracy of each seed
    milliseconds: float | None  # per thousand tokens of training, the mean of all its runs


def rows(records: Sequence[Record]) -> list[Row]:
    """One for each structure, in the order of the records."""
    longest = max(_longest(record) for record in records)
    found = []
    for structure in dict.fromkeys(_structure(record) for record in records):
        own = [record for record in records if _structure(record) == structure]
        scores: dict[str, list[float]] = {}
        for record in sorted(own, key=_seed):
            scores.setdefault(_task(record), []).append(record["evaluation"]["accuracy"])
        speed = 1e6 * sum(r["seconds"] for r in own) / max(sum(r["tokens"] for r in own), 1)
        effort: Effort = "search" if longest <= _SHORT else "quick"
        found.append(Row(structure, analyze(structure, longest, effort=effort), scores, speed))
    return found


def terminal(found: Sequence[Row]) -> Table:
    """Accuracy in per cent, ± half the spread over seeds; in brackets the paper's, at its own scale."""
    tasks = _tasks_of(found)
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 1 if len(tasks) > 1 else 2, 0, 0))
    table.add_column("structure", no_wrap=True)
    for name in ("reads", "cache", "hops", "cong.", "ms/1k"):
        table.add_column(name, justify="right", no_wrap=True)
    for task in tasks:
        table.add_column(_TASKS[task], justify="right", no_wrap=True)
    for row in found:
        cells = _cells(row, tasks)
        if len(tasks) > 1:  # in two lines, or it does not fit on 80 columns
            cells = [cell.replace(" ± ", "±").replace(" (", "\n(") for cell in cells]
        table.add_row(*cells)
    return table


def markdown(found: Sequence[Row], records: Sequence[Record]) -> str:
    """The table, the grades of the paper's claims, and how it was made."""
    tasks = _tasks_of(found)
    head = _head(tasks)
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(_cells(row, tasks)) + " |" for row in found]
    lines += ["", *_notes(records), *_by_hops(found, records), ""]
    graded = [f"| {claim} | {grade} |" for claim, grade in grades(found) if grade != "not run"]
    if graded:
        lines += ["| claim of the paper | grade at this scale |", "|---|---|", *graded, "", RULE, ""]
    return "\n".join(lines)


def _by_hops(found: Sequence[Row], records: Sequence[Record]) -> list[str]:
    """Multi-hop accuracy by the number of pairs that have to be looked up, all seeds together."""
    own = [record for record in records if "by_hops" in record["evaluation"]]
    if not own:
        return []
    counts: dict[str, dict[int, list[float]]] = {}
    for record in own:
        for hops, _, tokens, share in record["evaluation"]["by_hops"]:
            sums = counts.setdefault(_structure(record), {}).setdefault(min(int(hops), _MANY_HOPS), [0.0, 0.0])
            sums[0] += tokens
            sums[1] += tokens * share
    head = ["multi-hop, accuracy by hops", *(f"{hops}" for hops in range(1, _MANY_HOPS)), f"{_MANY_HOPS} or more"]
    lines = ["", "| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in found:
        sums_of = counts.get(row.structure, {})
        shares = [_percent(*sums_of.get(hops, (0, 0))) for hops in range(1, _MANY_HOPS + 1)]
        lines.append("| " + " | ".join([row.structure, *shares]) + " |")
    return lines


def _percent(count: float, right: float) -> str:
    return f"{100 * right / count:.1f}" if count else ""


def grades(found: Sequence[Row]) -> list[tuple[str, str]]:
    """Every claim about tasks that were run."""
    scores = {(task, row.structure): values for row in found for task, values in row.scores.items()}
    tasks = set(_tasks_of(found))
    return [(str(claim), claim.grade(scores)) for claim in CLAIMS if claim.task in tasks]


def write_csv(found: Sequence[Row], path: Path) -> None:
    """A line for each structure and task."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["structure", "task", "seeds", "mean", "least", "most", "paper", "reads", "cache_slots",
                         "max_hops", "congestion_lower", "congestion_upper", "ms_per_1k_tokens"])  # fmt: skip
        for row in found:
            p = row.profile
            for task, values in row.scores.items():
                writer.writerow([
                    row.structure, task, len(values), sum(values) / len(values), min(values), max(values),
                    PAPER.get((task, row.structure), ""), p.reads_per_token.max, p.cache_slots,
                    "inf" if p.unreachable_pairs else p.max_hops, p.congestion.lower, p.congestion.upper,
                    row.milliseconds,
                ])  # fmt: skip


def page(found: Sequence[Row], records: Sequence[Record], title: str) -> str:
    """One self-contained page."""
    tasks = _tasks_of(found)
    pictures = [(f"{_TASKS[task]}: accuracy", _task_figure(found, records, task)) for task in tasks]
    pictures.append(("accuracy against cost and congestion", _trade_figure(found)))
    return html.page(
        title,
        html.table(_head(tasks), [_cells(row, tasks) for row in found]),
        html.notes(_notes(records)),
        *(html.picture(name, figure) for name, figure in pictures),
        html.graded("Claims of the paper", RULE, grades(found)),
    )


def _task_figure(found: Sequence[Row], records: Sequence[Record], task: str) -> Figure:
    """Learning curves, accuracy by size, and by what else the task counts."""
    own = [record for record in records if _task(record) == task]
    extra = next((key for key in ("by_hops", "by_distance", "by_place") if key in own[0]["evaluation"]), None)
    panels = ["curve", "by_size", *([extra] if extra else [])]
    figure = Figure(figsize=(4.6 * len(panels), 3.6), layout="constrained")
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for number, row in enumerate(found):
            lines = [r for r in own if _structure(r) == row.structure]
            for record in lines:
                if panel == "curve":
                    xs, ys = [p[0] for p in record["curve"]], [p[2] for p in record["curve"]]
                else:
                    xs = [(low + high) / 2 for low, high, *_ in record["evaluation"][panel]]
                    ys = [share for *_, share in record["evaluation"][panel]]
                label = row.structure if record is lines[0] else None
                axes.plot(xs, ys, color=COLOURS[number % len(COLOURS)], label=label, marker=".", lw=1.3, alpha=0.85)
        _dress(axes, {"curve": "steps", "by_size": "size (symbols or pairs)"}.get(panel, panel.removeprefix("by_")))
    axes.legend(fontsize=7, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def _trade_figure(found: Sequence[Row]) -> Figure:
    """Accuracy of each task against reads per token, and against congestion."""
    figure = Figure(figsize=(10, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    for task, marker in zip(_tasks_of(found), "osD", strict=False):
        for number, row in enumerate(found):
            if task not in row.scores:
                continue
            mean = sum(row.scores[task]) / len(row.scores[task])
            p, colour = row.profile, COLOURS[number % len(COLOURS)]
            left.plot(p.reads_per_token.mean, mean, marker, color=colour)
            lower = p.congestion.lower
            right.plot(4 * p.n if lower == float("inf") else lower, mean, marker, color=colour)
    for axes, name in (
        (left, "past positions read per token (mean)"),
        (right, "congestion, lower bound (right edge: ∞)"),
    ):
        axes.set_xscale("log")
        _dress(axes, name)
    for task, marker in zip(_tasks_of(found), "osD", strict=False):
        right.plot([], [], marker, color="#666", label=_TASKS[task])
    for number, row in enumerate(found):
        right.plot([], [], "o", color=COLOURS[number % len(COLOURS)], label=row.structure)
    right.legend(fontsize=7, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def _dress(axes: Axes, x: str) -> None:
    axes.set_xlabel(x, fontsize=9)
    axes.set_ylabel("accuracy", fontsize=9)
    axes.set_ylim(-0.02, 1.02)
    axes.grid(color="#e8eaee", lw=0.7)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)


def _head(tasks: Sequence[str]) -> list[str]:
    names = ["structure", "reads", "cache", "hops", "congestion", "ms per 1k tokens"]
    return [*names, *(_TASKS[task] for task in tasks)]


def _cells(row: Row, tasks: Sequence[str]) -> list[str]:
    p = row.profile
    return [
        row.structure,
        f"{p.reads_per_token.max:,}",
        f"{p.cache_slots:,}",
        "∞" if p.unreachable_pairs else f"{p.max_hops:,}",
        describe(p.congestion),
        "" if row.milliseconds is None else f"{row.milliseconds:.0f}",
        *(_score(row, task) for task in tasks),
    ]


def _score(row: Row, task: str) -> str:
    values = row.scores.get(task)
    if not values:
        return "–"
    mean, half = 100 * sum(values) / len(values), 50 * (max(values) - min(values))
    spread = f" ± {half:.1f}" if len(values) > 1 else ""
    paper = PAPER.get((task, row.structure))
    return f"{mean:.1f}{spread}" + ("" if paper is None else f" ({100 * paper:.0f})")


def _notes(records: Sequence[Record]) -> list[str]:
    first = records[0]
    counts = {task: len(seeds) for task in _TASKS if (seeds := {_seed(r) for r in records if _task(r) == task})}
    hours = sum(record["seconds"] for record in records) / 3600
    said = first["surroundings"]
    rates: dict[str, set[float]] = {}
    for record in records:
        rates.setdefault(_structure(record), set()).add(record["config"]["train"]["learning_rate"])
    same = len({rate for each in rates.values() for rate in each}) == 1
    chosen = f"{next(iter(next(iter(rates.values()))))}" if same else "; ".join(
        f"{name} {', '.join(map(str, sorted(each)))}" for name, each in rates.items())  # fmt: skip
    longest = max(_longest(record) for record in records)
    commits = " and ".join(dict.fromkeys(str(record["surroundings"]["commit"]) for record in records))
    return [
        f"Reads, cache slots, hops and congestion are theory at n = {longest:,}. Accuracy: share of scored tokens "
        "right, on held-out sequences of all sizes, mean ± half the spread over seeds. In brackets "
        "the paper's figure, at its own, larger scale.",
        f"Seeds: {', '.join(f'{task} {count}' for task, count in counts.items())}. Learning rate: {chosen}. "
        f"{hours:.1f} hours of one core in all. torch {said['torch']}, {said['machine']}, commit {commits}.",
    ]


def _tasks_of(found: Sequence[Row]) -> list[str]:
    return [task for task in _TASKS if any(task in row.scores for row in found)]


def _structure(record: Record) -> str:
    """The pattern under study: that of the last layer, where the first has one of its own."""
    found = record["config"]["model"]["pattern"]
    return found if isinstance(found, str) else str(found[-1])


def _task(record: Record) -> str:
    return str(record["config"]["task"]["name"])


def _seed(record: Record) -> int:
    return int(record["config"]["train"]["seed"])


def _longest(record: Record) -> int:
    task = record["config"]["task"]
    return 2 * int(task["length"]) + 1 if task["name"] == "copy" else int(task["length"])

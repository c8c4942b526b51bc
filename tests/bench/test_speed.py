"""What is printed and published of benchmarks: ratios of the right times, in tables, documents and figures."""

import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

from docs import speed as sections
from resolvent.bench.record import PASSIVE, Missing
from resolvent.errors import SettingError
from resolvent.report.figures import panels_figure, record_panels
from resolvent.studies import render
from resolvent.studies import speed as tables
from tests.bench import samples


def rows(text: str) -> list[list[str]]:
    """The cells of all tables in Markdown."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]


def test_generation_is_compared_with_both_caches() -> None:
    shown = dict(tables.tables(samples.generation()))
    table = shown["tiny, batch 1 after 1,024 tokens"]
    # 5 ms · 64 = 320 ms of 0.8 M parameters, against 1,920 and 960 ms
    assert table.rows[2] == ("quadratic+cache", "320", "288…384", "0.8 M", "40,000", "3.00", "6.0", "3.0")
    alone = shown["tiny, batch 8, ragged after 1,024 tokens"]
    assert "×\nstatic" not in alone.head  # it did not run: a column of nothing is left out


def test_training_is_compared_with_both_peers() -> None:
    [_, (title, table)] = tables.tables(samples.training())
    assert title == "tiny, batch 1 on 256 tokens"
    row = {name.replace("\n", " "): cell for name, cell in zip(table.head, table.rows[2], strict=True)}
    assert row | {"× attention": "2.0", "× HF GPT-2": "3.0", "tokens per s": "640", "of bound": "25 %"} == row


def test_tables_fit_on_80_columns() -> None:
    for record in (samples.generation("gpt2-125m", 138_000_000), samples.training(seconds=3.0)):
        console = Console(width=80, file=io.StringIO())
        for _, table in tables.tables(record):
            console.print(render.terminal(table))
        assert isinstance(console.file, io.StringIO)
        cut = console.file.getvalue().replace("least…", "")
        assert not re.search(r"…(?!\d)", cut), cut


def test_notes_say_what_is_missing_and_why() -> None:
    record = samples.generation()
    [reason] = [each.reason for each in record.missing]
    both = replace(record, missing=(*record.missing, Missing("attention", reason)))
    notes = tables.notes(both)
    assert notes[-1] == f"Not measured: HF GPT-2, static; attention ({reason})."


def test_plain_runs_are_published_and_compared_with_passive_ones() -> None:
    records = [samples.operator(PASSIVE, slower=0.5), samples.operator()]
    assert sections.published(records, "operator") == records[1:]
    assert sections.published(records[:1], "operator") == records[:1]
    assert rows(sections.section(records, "operator"))[2] == ["64", "sdpa", "80.0", "72.0…96.0", "1.00", "50 %"]
    compared = rows(sections.section(records, "wait-policy"))
    assert compared[3] == ["", "exponential", "40.0 ms", "20.0 ms", "2.0", "8.0", "8.0"]
    assert "No records" in sections.section(records[1:], "wait-policy")


def test_readme_has_a_column_for_each_pattern() -> None:
    small = samples.generation()
    large = samples.generation("gpt2-125m", 124_000_000)
    text = sections.section([*samples.everything(), large], "readme")
    table = rows(text)
    assert table[0] == ["", "exponential", "quadratic+cache"]
    assert table[2][1:] == ["8.0", "4.0"]
    assert table[5][1:] == table[6][1:] == ["", "3.0 (6.0)"]  # the static cache, and the default one
    assert small.shape not in table[5][0]
    assert "Parameters of gpt2-125m: HF GPT-2 124.0 M" in text


def test_figures_show_the_times() -> None:
    record = samples.training()
    panels = record_panels(record)
    time, memory = panels_figure(panels).axes
    lines = {container.get_label(): container.lines[0] for container in time.containers}
    assert list(lines) == ["attention", "quadratic+cache", "HF GPT-2"]  # structures first, in the one order
    assert lines["attention"].get_ydata().tolist() == pytest.approx([800, 800])
    assert memory.containers[1].lines[0].get_ydata().tolist() == [64, 256]
    with pytest.raises(SettingError, match="expected records of generation or of training to draw"):
        sections.figure([samples.decoding()])


def test_growth_is_fitted() -> None:
    """Exact powers are found, uneven lengths included, and a doubling is a doubling."""
    factors, exponent = tables.trend([(n, 3e-4 * n**1.5) for n in (100, 400, 800, 8000)])
    assert exponent == pytest.approx(1.5)
    assert factors == pytest.approx([2**1.5] * 3)
    table = tables.growth(samples.operator())
    assert table is not None
    assert table.rows[0] == ("forward", "sdpa", "1.00", "n^0.00")
    assert tables.growth(samples.decoding()) is None

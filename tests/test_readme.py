"""Numbers that documents type: those of the library, and of the results that are made from records."""

import re
from itertools import takewhile
from pathlib import Path

import resolvent as rv
from resolvent.analysis.cost import cache_bytes

ROOT = Path(__file__).parents[1]
UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20}


def rows(document: str, heading: str) -> dict[str, list[str]]:
    """The rows of the first table whose head begins with these cells, by their first cell."""
    lines = (ROOT / document).read_text(encoding="utf-8").splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(heading))
    table = [line.strip("|").split(" | ") for line in takewhile(bool, lines[start:]) if " | " in line]
    return {name.split(",")[0].strip(): [cell.strip() for cell in cells] for name, *cells in table}


def first_number(cell: str) -> float:
    return float(re.findall(r"[\d.]+", cell)[0])


def test_what_a_small_cache_costs() -> None:
    """Slots and bytes of a head as the library has them; qualities as docs/results.md has them."""
    head = rows("docs/results.md", "| nats above the floor | reads")
    column = head["nats above the floor"].index("256 tokens, 2,000 steps")
    ladder = rows("docs/results.md", "| structure | params | mixing | cache | learning rate")
    perplexity = ladder["structure"].index("all targets")
    table = rows("README.md", "| structure | slots | bytes | Markov, nats")
    structures = [name for name in table if name != "structure"]
    assert len(structures) == 5
    for name in structures:
        slots, size, markov, python = table[name]
        pattern = rv.pattern(name)
        assert int(slots.replace(",", "")) == pattern.slots(131_072)
        number, unit = size.split()
        assert round(cache_bytes(pattern, 131_072, heads=1, head_dim=64, item_bytes=4) / UNITS[unit]) == int(number)
        run = "order" if name == "order:8" else name  # a band of 15 was run instead of one of 8
        shown = float(re.findall(r"\d\.\d\d", markov)[0])
        assert abs(shown - first_number(head[run][column])) < 0.0051  # two digits of three
        assert python == ladder[name][perplexity]

"""`python -m tests.gpu.resources [--missing] [TARGET …] [PART …]`: compile variants with these parts in their names.

Without parts, every variant for every target, which takes half an hour of one core; with --missing, what resources.json
does not have yet. It is written after each dozen, so that what was stopped can go on.
"""

import json
import sys
from pathlib import Path

from resolvent.files import write_text
from tests.gpu.compiling import TARGETS, compile_variant, variants

TABLE = Path(__file__).with_name("resources.json")
MISSING = "--missing"
Table = dict[str, dict[str, list[int]]]


def read() -> Table:
    """By variant and target: registers, bytes of stack, bytes of shared memory."""
    table: Table = json.loads(TABLE.read_text(encoding="utf-8")) if TABLE.exists() else {}
    return table


def write(table: Table) -> None:
    lines = (f"{json.dumps(name)}: {json.dumps(table[name], sort_keys=True)}" for name in sorted(table))
    write_text(TABLE, "{\n" + ",\n".join(lines) + "\n}\n")


def main(words: list[str]) -> None:
    targets = [word for word in words if word in TARGETS] or list(TARGETS)
    parts = [word for word in words if word not in TARGETS and word != MISSING]
    every = {variant.name: variant for variant in variants()}
    table = {name: resources for name, resources in read().items() if name in every}
    chosen = [
        (name, target)
        for name in every
        for target in targets
        if all(part in name for part in parts) and not (MISSING in words and target in table.get(name, {}))
    ]
    for number, (name, target) in enumerate(chosen, 1):
        table.setdefault(name, {})[target] = compile_variant(every[name], target).resources
        print(f"{number} of {len(chosen)}: {target} {name} {table[name][target]}", flush=True)
        if number % 12 == 0:
            write(table)
    write(table)


if __name__ == "__main__":
    main(sys.argv[1:])

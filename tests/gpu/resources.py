"""`python -m tests.gpu.resources`: compile what resources.json does not have yet, and forget variants that are gone.

Every variant for every target takes half an hour of one core. The table is written after each dozen, so that what was
stopped can go on; a row is measured anew once it is deleted.
"""

import json
from pathlib import Path

from resolvent.files import write_text
from tests.gpu.compiling import TARGETS, compile_variant, variants

TABLE = Path(__file__).with_name("resources.json")
Table = dict[str, dict[str, list[int]]]


def read() -> Table:
    """By variant and target: registers, bytes of stack, bytes of shared memory."""
    table: Table = json.loads(TABLE.read_text(encoding="utf-8")) if TABLE.exists() else {}
    return table


def write(table: Table) -> None:
    lines = (f"{json.dumps(name)}: {json.dumps(table[name], sort_keys=True)}" for name in sorted(table))
    write_text(TABLE, "{\n" + ",\n".join(lines) + "\n}\n")


def main() -> None:
    every = {variant.name: variant for variant in variants()}
    table = {name: resources for name, resources in read().items() if name in every}
    missing = [(name, target) for name in every for target in TARGETS if target not in table.get(name, {})]
    for number, (name, target) in enumerate(missing, 1):
        table.setdefault(name, {})[target] = compile_variant(every[name], target).resources
        print(f"{number} of {len(missing)}: {target} {name} {table[name][target]}", flush=True)
        if number % 12 == 0:
            write(table)
    write(table)


if __name__ == "__main__":
    main()

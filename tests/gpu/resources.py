"""`python -m tests.gpu.resources [PART …]`: compile variants whose names have these parts, and keep what they take.

Without parts, every variant for every target, which takes hours; resources.json is written after each.
"""

import json
import sys
from pathlib import Path

from resolvent.files import write_text
from tests.gpu.compiling import TARGETS, compile_variant, variants

TABLE = Path(__file__).with_name("resources.json")


def main(parts: list[str]) -> None:
    table = json.loads(TABLE.read_text()) if TABLE.exists() else {}
    targets = [part for part in parts if part in TARGETS] or list(TARGETS)
    wanted = [part for part in parts if part not in TARGETS]
    for variant in variants():
        if wanted and not any(part == variant.name for part in wanted):
            continue
        for target in targets:
            try:
                found = compile_variant(variant, target).resources
            except Exception as error:
                sys.exit(f"{variant.name} does not compile for {target}: {error}")
            print(target, variant.name, found, flush=True)
            table.setdefault(target, {})[variant.name] = found
            write_text(TABLE, json.dumps(table, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])

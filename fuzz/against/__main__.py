"""`python -m fuzz.against REF`: 0 if this tree computes what that of REF does, but for intended differences."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from fuzz.against.compare import compare
from fuzz.against.trees import OUT, this_tree, tree_of

_MOST_LINES = 40  # of differences; a file has them all


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz.against", description=__doc__)
    parser.add_argument("ref", help="a commit")
    parser.add_argument("--only", default="*", help="cases whose names match this glob, such as 'decode/*/float32'")
    parser.add_argument("--tolerance", action="store_true", help="allow rounding, for another design of the same thing")
    options = parser.parse_args(arguments)
    only = options.only
    mine, theirs = this_tree(only), tree_of(options.ref, only)
    running = [(tree, tree.start(only)) for tree in (mine, theirs) if tree is mine or not tree.complete]
    for tree, child in running:  # at once
        if child.wait():
            print(f"The cases in {tree.folder} ended with exit code {child.returncode} at {tree.state}.")
    if not (mine.complete and theirs.complete):
        return 2
    report = compare(mine.results, theirs.results, only, tolerance=options.tolerance)
    (OUT / "report.txt").write_text(report.text() + "\n")
    print(report.text(_MOST_LINES))
    print(f"{len(report.unintended):,} unintended differences from {options.ref}; {OUT / 'report.txt'} lists all.")
    return int(bool(report.unintended))


if __name__ == "__main__":
    sys.exit(main())

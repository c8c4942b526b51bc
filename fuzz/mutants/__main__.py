"""`python -m fuzz.mutants`: apply each patch in a worktree, and see whether a test fails.

Tests whose names or folders are like those of the changed module run first, then all others. Results are kept in
`out/mutants/results.json` by commit and patch, so that an interrupted call goes on where it was.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import time
import venv
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
OUT = ROOT / "out" / "mutants"
TREE, RESULTS = OUT / "tree", OUT / "results.json"
PYTHON = str(TREE / ".venv" / "bin" / "python")
_HEADER = re.compile(r"^(Breaks|Try): (.*)$", re.MULTILINE)
_CHANGED = re.compile(r"^\+\+\+ b/(.*)$", re.MULTILINE)
_FAILED = re.compile(r"^(?:FAILED|ERROR) (tests/.+?)(?: - .*)?$", re.MULTILINE)

Result = dict[str, str | float]


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if the tests notice every change, 1 if one survives or no longer applies."""
    parser = argparse.ArgumentParser(prog="python -m fuzz.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="patches, or what their names begin with [default: all]")
    parser.add_argument("--ref", default="HEAD", help="commit whose tree is changed and tested [default: HEAD]")
    parser.add_argument("-n", type=int, default=2, dest="processes", help="processes that run tests [default: 2]")
    parser.add_argument("--near", action="store_true", help="run the nearest tests alone")
    parser.add_argument("--limit", type=float, default=3600, help="seconds for the tests of one patch [default: 3600]")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    patches = sorted(Path(__file__).parent.glob("*.patch"))
    chosen = [p for p in patches if not options.names or p.stem.startswith(tuple(options.names))]
    if not chosen:
        parser.error(f"no patch begins with {' or '.join(options.names)}: see {Path(__file__).parent}.")
    commit = _run(["git", "rev-parse", "--verify", f"{options.ref}^{{commit}}"], at=ROOT)
    _prepare(commit)
    known: dict[str, Result] = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    results: dict[str, Result] = {}
    for patch in chosen:
        key = f"{commit} {hashlib.sha256(_diff(patch).encode()).hexdigest()[:16]}"
        if key not in known or (known[key]["outcome"] == "survived near tests" and not options.near):
            result = _outcome(patch, commit, options)
            known[key] = {"name": patch.stem, **result}
            RESULTS.write_text(json.dumps(known, indent=1), encoding="utf-8")
        results[patch.stem] = known[key]
        if not options.json:
            print(_line(patch, known[key]), flush=True)
    killed = sum(result["outcome"] == "killed" for result in results.values())
    print(json.dumps(results, indent=1) if options.json else f"{killed} of {len(results)} killed at {commit[:7]}")
    return int(killed < len(results))


def _prepare(commit: str) -> None:
    """The worktree at this commit, with an environment that imports its source, in processes of tests, too."""
    if not (TREE / ".git").exists():
        OUT.mkdir(parents=True, exist_ok=True)
        _run(["git", "worktree", "add", "--quiet", "--force", "--detach", str(TREE), commit], at=ROOT)
    _restore(commit)
    environment = TREE / ".venv"
    if not environment.exists():
        venv.create(environment, symlinks=True)
        (packages,) = environment.glob("lib/python3*/site-packages")
        shared = [path for path in sys.path if path.endswith("site-packages")]
        (packages / "00_paths.pth").write_text("\n".join([str(TREE / "src"), *shared]) + "\n", encoding="utf-8")
    found = _run([PYTHON, "-c", "import resolvent; print(resolvent.__file__)"], at=OUT)
    assert Path(found).is_relative_to(TREE), f"tests would import {found}"


def _outcome(patch: Path, commit: str, options: argparse.Namespace) -> Result:
    """Whether a test fails with the patch that passes without it, which one, and the seconds until then."""
    begin = time.monotonic()
    _restore(commit, patch)
    command = ["patch", "-p1", "-F3", "-s", "--no-backup-if-mismatch", "-r", "-"]
    applied = subprocess.run(command, cwd=TREE, input=_diff(patch), text=True, capture_output=True)
    if applied.returncode:
        return {"outcome": "does not apply", "by": applied.stdout.strip(), "seconds": 0.0}
    named, near = _nearest(patch)
    calls = [named, near] if options.near else [named, near, ["tests", *(f"--ignore={path}" for path in near)]]
    by = next(filter(None, (_first_failure(paths, options) for paths in calls if paths)), "")
    seconds = round(time.monotonic() - begin, 1)
    _restore(commit, patch)
    if not by:
        return {"outcome": "survived near tests" if options.near else "survived", "by": "", "seconds": seconds}
    sound = not by.startswith("tests/") or not _first_failure([by], options)
    return {"outcome": "killed" if sound else "fails without it, too", "by": by, "seconds": seconds}


def _nearest(patch: Path) -> tuple[list[str], list[str]]:
    """Tests that the patch names, and files that are named as the changed module or its folder."""
    files = [str(path.relative_to(TREE)) for path in sorted(TREE.glob("tests/**/test_*.py"))]
    named = [test for test in _header(patch).get("Try", "").split() if test.partition("::")[0] in files]
    (changed,) = _CHANGED.findall(_diff(patch))
    words = set(Path(changed).with_suffix("").parts[2:]) - {"__init__"}
    return named, [path for path in files if words & {Path(path).stem.removeprefix("test_"), *Path(path).parts[1:-1]}]


def _first_failure(paths: Sequence[str], options: argparse.Namespace) -> str:
    """The first test that fails; empty if none does."""
    command = ["timeout", str(options.limit), PYTHON, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *paths]
    command += ["-n", str(options.processes), "--dist", "worksteal"] if options.processes > 1 else []
    environment = {"NUMBA_CACHE_DIR": str(OUT / "numba"), "OMP_WAIT_POLICY": "passive"} | os.environ
    ended = subprocess.run(command, cwd=TREE, env=environment, capture_output=True, text=True)
    if ended.returncode in (0, 4, 5):  # 4: the patch names a test that is no more; 5: these files have none that is run
        return ""
    failed = _FAILED.search(ended.stdout)
    return failed[1] if failed else f"pytest ended with {ended.returncode}: {(ended.stdout + ended.stderr)[-300:]}"


def _restore(commit: str, patch: Path | None = None) -> None:
    """The tree as it was committed, without what Python has compiled of the changed file within the same second."""
    _run(["git", "checkout", "--quiet", "--force", "--detach", commit], at=TREE)
    for changed in _CHANGED.findall(_diff(patch)) if patch else []:
        for compiled in (TREE / changed).parent.glob(f"__pycache__/{Path(changed).stem}.*"):
            compiled.unlink()


def _diff(patch: Path) -> str:
    text = patch.read_text(encoding="utf-8")
    return text[text.index("--- a/") :]


def _header(patch: Path) -> dict[str, str]:
    return dict(_HEADER.findall(patch.read_text(encoding="utf-8")))


def _line(patch: Path, result: Result) -> str:
    found = f"{patch.stem:32} {result['outcome']:9} {result['seconds']:7} s  {result['by']}"
    return f"{found}\n    {_header(patch)['Breaks']}"


def _run(command: Sequence[str], at: Path) -> str:
    return subprocess.run(command, cwd=at, check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())

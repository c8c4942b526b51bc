"""The tree here, and that of another commit in a worktree with an environment of its own, both below `out/against`."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "out" / "against"


@dataclass(frozen=True)
class Tree:
    """A tree of the project, the Python that imports it, where results of its cases go, and what these depend on."""

    folder: Path
    python: Path
    results: Path
    digest: str

    @property
    def state(self) -> str:
        """The case that runs or ran last; the digest after the last one."""
        path = self.results / "state"
        return path.read_text() if path.exists() else "its beginning"

    @property
    def complete(self) -> bool:
        return self.state == self.digest

    def start(self, only: str) -> subprocess.Popen[bytes]:
        """Run the cases in a process, on one thread."""
        shutil.rmtree(self.results, ignore_errors=True)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        environment |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "PYTHONHASHSEED": "0"}
        environment.setdefault("NUMBA_CACHE_DIR", str(OUT / "kernels"))  # whose names have a digest of their sources
        command = [self.python, "-m", "fuzz.against.driver", self.folder / "src", self.results, only, self.digest]
        return subprocess.Popen(command, cwd=ROOT, env=environment)


def this_tree(only: str) -> Tree:
    return Tree(ROOT, Path(sys.executable), OUT / "this" / "results", _digest(only))


def tree_of(ref: str, only: str) -> Tree:
    """A worktree of that commit. What was made before is used again, results too if the same cases gave them."""
    asked = ["git", "rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}"]
    commit = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True).stdout.strip()
    if not commit:
        sys.exit(f"expected a commit of this repository, got '{ref}'.")
    home = OUT / commit[:12]
    folder = home / "tree"
    if not (folder / "pyproject.toml").exists():
        subprocess.run(["git", "worktree", "prune"], cwd=ROOT, check=True)
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", folder, commit], cwd=ROOT, check=True)
    shared = _has_all_of(folder)
    environment = home / ("environment-shared" if shared else "environment")
    if not (environment / "ready").exists():
        _make(environment, folder, shared=shared)
        (environment / "ready").touch()
    python = environment / "bin" / "python"
    every = Tree(folder, python, home / "results", _digest("*"))
    return every if every.complete or only == "*" else Tree(folder, python, home / "results-of-some", _digest(only))


def _digest(only: str) -> str:
    """Of the cases and of the packages installed here."""
    digest = hashlib.sha256(f"{only} {sorted(_installed().items())}".encode())
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    return digest.hexdigest()


def _make(environment: Path, folder: Path, *, shared: bool) -> None:
    """The package in an environment of its own: with the other packages of this one, or with those it asks for."""
    print(f"making {environment}", file=sys.stderr)
    options = ["--without-pip"] if shared else []
    subprocess.run([sys.executable, "-m", "venv", "--clear", *options, environment], check=True)
    if shared:
        paths = [str(folder / "src"), *(path for path in sys.path if path.endswith(("site-packages", "dist-packages")))]
        packages = next(environment.glob("lib/python*/site-packages"))
        (packages / "against.pth").write_text("\n".join(paths) + "\n")
    else:
        pip = [environment / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "-c", "constraints.txt", "-e", "."], cwd=folder, check=True)


def _has_all_of(folder: Path) -> bool:
    """Whether this environment has what that tree depends on, in the versions that it is pinned to."""
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    needed = {_normal(re.split(r"[^\w.-]", name)[0]) for name in project["dependencies"]}
    lines = (folder / "constraints.txt").read_text().splitlines()
    pins = {_normal(line.split("==")[0]): line.split("==")[1].split()[0] for line in lines if "==" in line}
    installed = _installed()
    return needed <= installed.keys() and all(installed.get(name, pin) == pin for name, pin in pins.items())


def _installed() -> dict[str, str]:
    return {_normal(each.name): each.version.split("+")[0] for each in distributions()}


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()

"""Records of runs: what was run, with what, how long, and what came out. Plain JSON; reports need nothing else."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

from resolvent.files import write_text

FORMAT, VERSION = "resolvent-run", 1
_PACKAGES = ("resolvent", "torch", "numpy", "numba")


def surroundings() -> dict[str, Any]:
    """Versions, machine and commit."""
    return {
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in _PACKAGES},
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
        "commit": _commit(),
    }


def write(path: Path, content: dict[str, Any]) -> None:
    """Whole or not at all."""
    write_text(path, json.dumps({"format": FORMAT, "version": VERSION, **content}, indent=1) + "\n")


def read(path: Path) -> dict[str, Any]:
    """A record, or a clear refusal."""
    try:
        content = json.loads(path.read_text())
    except (ValueError, UnicodeDecodeError) as error:
        raise ValueError(
            f"{path} is damaged: expected a run's record in JSON ({error}). Delete it to run again."
        ) from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"{path} is no record of a run: expected format '{FORMAT}'. Move it away to run again.")
    if content.get("version") != VERSION:
        raise ValueError(f"{path} has version {content.get('version')!r}, and this release reads {VERSION}.")
    return content


def _commit() -> str | None:
    """The commit of the source, if it lies in a repository."""
    try:
        found = subprocess.run(
            ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"],
            capture_output=True, text=True, timeout=10, check=False,
        )  # fmt: skip
    except OSError:
        return None
    return found.stdout.strip() or None

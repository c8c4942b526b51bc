"""Commands in processes that may not write where a container's may not, whoever runs the tests."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import resolvent as rv

# Root may write to folders that say otherwise, by a capability that a process can drop before it becomes another. The
# numbers are those of prctl(2) and capabilities(7): PR_CAPBSET_DROP of CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH.
_BECOME_ORDINARY = """
import ctypes, os, sys
if os.geteuid() == 0:
    for capability in (1, 2):
        assert ctypes.CDLL(None).prctl(24, capability, 0, 0, 0) == 0, "cannot drop root's rights"
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
_INHERITED = {"NUMBA_CACHE_DIR", "MPLCONFIGDIR", "RESOLVENT_CACHE_NOTICE", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"}


def run(*arguments: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """Python with these arguments, as a process that is bound by the permissions of files."""
    own = {name: value for name, value in os.environ.items() if name not in _INHERITED} | environment
    command = [sys.executable, "-c", _BECOME_ORDINARY, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=own, cwd=cwd)


def make_read_only(folder: Path) -> None:
    """The folder and all below it."""
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)


def make_writable(folder: Path) -> None:
    """So that it can be removed."""
    for path, _, _ in os.walk(folder):
        Path(path).chmod(0o755)


def copy_of_package(folder: Path) -> Path:
    """The package in a folder of its own, with nothing compiled; the folder, for PYTHONPATH."""
    shutil.copytree(Path(rv.__file__).parent, folder / "resolvent", ignore=shutil.ignore_patterns("__pycache__"))
    return folder

"""The standard library of the Python that runs this, as a text: on every machine, with nothing to download.

It is what is there: the .py files of the library's folder, in the order of their paths. Left out are packages that were
installed beside it, tests, what many systems ship apart (IDLE, demos), and what no person wrote (tables of encodings,
the topics of pydoc, the settings of this build). So releases and systems differ, and the fingerprint of a corpus, over
names and contents, says whether two are the same. A module is held out by the hash of its name: the same ones in every
release.
"""

from __future__ import annotations

import os
import platform
import sysconfig
from pathlib import Path

from resolvent.text.files import TextError
from resolvent.text.sources import Source, source_of

NAME = "python"
_FOLDERS = frozenset({
    "site-packages", "dist-packages", "test", "tests", "idle_test", "idlelib", "turtledemo", "encodings", "pydoc_data",
    "__pycache__",
})  # fmt: skip
_PREFIXES = ("config-", "_sysconfigdata", "sitecustomize", "usercustomize")  # of this build, or this machine


def release() -> str:
    """Which Python it is, such as `Python 3.11.7`."""
    return f"Python {platform.python_version()}"


def standard_library(folder: Path | None = None) -> list[Source]:
    """Its files, by their paths from its folder [default: that of the Python that runs this]."""
    root = Path(sysconfig.get_path("stdlib")) if folder is None else folder
    names = []
    for path, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in _FOLDERS and not name.startswith(_PREFIXES)]
        own = Path(path).relative_to(root)
        names += [own / name for name in files if name.endswith(".py") and not name.startswith(_PREFIXES)]
    if not names:
        raise TextError(
            f"the standard library has no source in {root}: expected .py files there. Some systems keep it in an "
            "archive; use another Python, or name files of your own."
        )
    return [source_of(root / name, name.as_posix()) for name in sorted(names, key=lambda name: name.as_posix())]

"""Which texts are asked for: a corpus by name, or files and folders, and how they are read."""

from __future__ import annotations

import os
import platform
import sysconfig
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import final

from resolvent.errors import closest
from resolvent.text.corpora import CORPORA, DOCUMENTS, HUB, hub_revision
from resolvent.text.fetch import fetch
from resolvent.text.files import TextError
from resolvent.text.reading import ReadOptions
from resolvent.text.sources import Source, find_sources, source_of, survey

OnProgress = Callable[[str, float], None]  # the current stage, and the fraction of it that is done
TextSources = str | Path | Sequence[str | Path]

PYTHON = "python"
# What is not the library itself: folders, and beginnings of names of this build or this machine.
_OTHERS = frozenset({
    "site-packages", "dist-packages", "test", "tests", "idle_test", "idlelib", "turtledemo", "encodings", "pydoc_data",
    "__pycache__",
})  # fmt: skip
_PREFIXES = ("config-", "_sysconfigdata", "sitecustomize", "usercustomize")


@final
@dataclass(frozen=True)
class TextRequest:
    """The name of a corpus or paths, never both."""

    corpus: str | None
    paths: tuple[Path, ...]
    options: ReadOptions

    @classmethod
    def parse(cls, given: TextSources, options: ReadOptions, held_out: float | None) -> TextRequest:
        """Names and paths that exist, and options that make sense; anything else raises an error."""
        sources = [given] if isinstance(given, str | Path) else list(given)
        if options.errors not in ("strict", "replace"):
            raise TextError(f"expected errors to be strict or replace, got '{options.errors}'.")
        names = [*CORPORA, *HUB, PYTHON]
        named = [str(source) for source in sources if source in names]
        if named and len(sources) > 1:
            raise TextError(f"{named[0]} is prepared alone: expected its name only, or files and folders only.")
        share = held_out if held_out is not None else 0.0005 if named and named[0] in HUB else 0.05
        if not 0 <= share < 0.5:
            raise TextError(f"expected a share of 0 ≤ held_out < 0.5 for validation, and for test, got {share}.")
        if not sources:
            raise TextError(f"nothing to prepare: expected {', '.join(names)}, or files and folders.")
        for source in sources:
            if not named and not Path(source).exists():
                raise TextError(
                    f"there is no file or folder {source}, and no corpus of that name: expected "
                    f"{', '.join(names)} or a path.{closest(str(source), names)}"
                )
        paths = () if named else tuple(map(Path, sources))
        return cls(named[0] if named else None, paths, replace(options, held_out=share))

    @property
    def package(self) -> str | None:
        """The requirement, or the release of Python, that a named corpus comes from, if any."""
        if self.corpus == PYTHON:
            return f"Python {platform.python_version()}"
        return CORPORA[self.corpus].requirement if self.corpus in CORPORA else None

    @property
    def is_local(self) -> bool:
        """Whether the texts are files that somebody may have changed, and not a download."""
        return self.corpus in (None, PYTHON)

    def sources(self) -> list[Source]:
        """The source files; those of a named corpus are downloaded first."""
        if self.corpus in HUB:
            name = HUB[self.corpus]
            return [Source(name, Path(), "hub", 0, 0.0, sha256=hub_revision(name))]
        if self.corpus == PYTHON:
            return standard_library()
        if self.corpus is not None:
            return find_sources([fetch(CORPORA[self.corpus], f"corpora/{self.corpus}")])
        return find_sources(self.paths)

    def survey(self, files: Sequence[Source], on_progress: OnProgress) -> tuple[list[Source], str]:
        """Read every source once; the sources with their splits, and the rule that set them."""
        done, total = 0, sum(file.stored for file in files)

        def count(size: int) -> None:
            nonlocal done
            done += size
            on_progress("reading texts", done / total if total else 1.0)

        return survey(files, self.options.held_out, count, by_name=self.corpus == PYTHON)


def fraction_done(sources: Sequence[Source]) -> Callable[[int, int], float]:
    """A function from (source index, position) to the fraction of all bytes that precede it."""
    before = [0, *accumulate(source.bytes for source in sources)]

    def fraction(i: int, position: int) -> float:
        source = sources[i]
        if source.kind == "hub":
            return min(1.0, position / DOCUMENTS[source.name])
        done = source.bytes * position / source.rows if source.kind == "parquet" else position
        return (before[i] + done) / before[-1]

    return fraction


def standard_library(folder: Path | None = None) -> list[Source]:
    """The library of the Python that runs this, or of a folder, as a text: on every machine, nothing to download.

    Its .py files by their paths. Left out are packages that were installed beside it, tests, what many systems ship
    apart (IDLE, demos), and what no person wrote (tables of encodings, the topics of pydoc, settings of this build). So
    releases and systems differ, and the fingerprint of a corpus, over names and contents, says whether two are the
    same. A module is held out by the hash of its name: the same ones in every release.
    """
    root = Path(sysconfig.get_path("stdlib")) if folder is None else folder
    names = []
    for path, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in _OTHERS and not name.startswith(_PREFIXES)]
        own = Path(path).relative_to(root)
        names += [own / name for name in files if name.endswith(".py") and not name.startswith(_PREFIXES)]
    if not names:
        raise TextError(
            f"the standard library has no source in {root}: expected .py files there. Some systems keep it in an "
            "archive; use another Python, or name files of your own."
        )
    return [source_of(root / name, name.as_posix()) for name in sorted(names, key=lambda name: name.as_posix())]

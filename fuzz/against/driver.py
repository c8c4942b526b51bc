"""Run the cases in one tree and write what they compute: `… TREE FOLDER GLOB DIGEST`."""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Iterator
from fnmatch import fnmatchcase
from itertools import count, groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor


def main(tree: str, folder: str, only: str, digest: str) -> None:
    """The file "state" in the folder names the case that runs, and has the digest after the last one."""
    import resolvent

    loaded = Path(resolvent.__file__).resolve()
    if not loaded.is_relative_to(Path(tree).resolve()):
        sys.exit(f"expected to import resolvent from {tree}, and its environment has {loaded}.")
    from fuzz.against.cases import cases

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    chosen = [case for case in cases() if fnmatchcase(case[0], only)]
    if not chosen:
        sys.exit(f"expected a glob of names such as {next(cases())[0]}, got {only!r}, which none matches.")
    done, began, results = count(1), time.monotonic(), Path(folder)
    results.mkdir(parents=True)
    for surface, members in groupby(chosen, lambda case: case[0].split("/")[0]):
        found: dict[str, object] = {}
        for name, run in members:
            (results / "state").write_text(name)
            try:
                found[name] = run()
            except Exception as error:
                found[name] = {"error": f"{type(error).__name__}: {error}"}
            _show(next(done), len(chosen), time.monotonic() - began)
        write(results, surface, found)
    (results / "state").write_text(digest)


def _show(done: int, total: int, seconds: float) -> None:
    """One line that is written over, for people only."""
    if sys.stderr.isatty():
        left, end = seconds / done * (total - done), "" if done < total else "\r\x1b[2K"
        print(f"\r\x1b[2K{done:,} of {total:,} cases, {left:.0f} s left{end}", end="", file=sys.stderr, flush=True)


def write(folder: Path, surface: str, results: dict[str, Any]) -> None:
    """Tensors and figures, as `compare.read` reads them: each by its case and its name there."""
    tensors: dict[str, Tensor] = {}
    figures: dict[str, object] = {}
    for case, values in results.items():
        for name, value in _flat(values):
            if isinstance(value, Tensor | np.ndarray):
                tensors[f"{case}#{name}"] = torch.as_tensor(value).detach().contiguous().clone()
            else:
                figures[f"{case}#{name}"] = value
    save_file(tensors, folder / f"{surface}.safetensors")
    (folder / f"{surface}.json").write_text(json.dumps(figures))


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of nested dictionaries and lists; prose is none of them."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else None
    if inner is None:
        yield name, value
    else:
        for key, each in inner:
            if key not in ("why", "text", "note"):
                yield from _flat(each, f"{name}.{key}" if name else str(key))


if __name__ == "__main__":
    main(*sys.argv[1:])

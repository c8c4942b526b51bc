"""The command that compiles kernels before anybody needs them."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Literal

import typer

from resolvent.cli.shared import app, progress
from resolvent.disk_cache import kernel_folder
from resolvent.errors import SettingError


@app.command("warm-up")
def warm_up(
    *, dtype: Annotated[Literal["float32", "float64"], typer.Option(help="What layers compute in.")] = "float32"
) -> None:
    """Compile the CPU kernels that models commonly use, and keep them on disk.

    Otherwise the first process that needs a kernel compiles it. Run this when
    a container image is built, or once on each kind of machine of a cluster,
    with NUMBA_CACHE_DIR set to a folder that they share.
    """
    from resolvent.kernels.process import compile_now
    from resolvent.ops.warm_up import usual_variants

    folder = kernel_folder()
    if folder is None:
        raise SettingError("no folder for compiled kernels can be written: set NUMBA_CACHE_DIR to one that can.")
    variants = usual_variants(dtype)
    missing = [variant for variant in variants if variant.read() is None]
    with (
        progress(f"compiling {len(missing)} kernels", len(missing)) as advance,
        ThreadPoolExecutor(os.cpu_count()) as pool,
    ):
        failed = []
        for variant, failure in zip(missing, pool.map(lambda v: compile_now([v]), missing), strict=True):
            failed += [(variant, failure)] if failure else []
            advance()
    if failed:
        variant, failure = failed[0]
        sys.exit(f"{variant.name} could not be compiled to {folder}: {failure.splitlines()[-1]}")
    print(f"{len(variants)} kernels in {folder}, {len(missing)} of them compiled now.")

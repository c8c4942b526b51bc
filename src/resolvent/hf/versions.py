"""Which versions of transformers this works with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata

LEAST, BELOW = (5, 22), (6, 0)
_SUPPORTED = "resolvent.hf works with transformers ≥ 5.22 and < 6"
_INSTALL = "pip install 'transformers>=5.22,<6'."


def require_transformers() -> None:
    """Raise an error that says what to install unless a version is there that is supported."""
    try:
        version = metadata.version("transformers")
    except metadata.PackageNotFoundError:
        raise ImportError(f"{_SUPPORTED}, which is missing: {_INSTALL}") from None
    if not LEAST <= _release(version) < BELOW:
        raise ImportError(f"{_SUPPORTED}, got {version}: {_INSTALL}")


def _release(version: str) -> tuple[int, ...]:
    """The first two numbers of a version such as 5.22.2."""
    return tuple(int(number) for number in version.split(".")[:2] if number.isdigit())


@contextmanager
def without_progress_bars() -> Iterator[None]:
    """Of transformers, which draws them whether or not anybody looks."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()

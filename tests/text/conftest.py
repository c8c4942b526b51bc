"""A cache of its own for the session, and GPT-2's tokenizer in it, fetched once."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from resolvent.text import GPT2Tokenizer


@pytest.fixture(scope="session")
def session_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True, scope="session")
def cache(session_cache: Path) -> Iterator[None]:
    """Nothing is read from or written to the user's cache."""
    patch = pytest.MonkeyPatch()
    patch.setenv("XDG_CACHE_HOME", str(session_cache))
    yield
    patch.undo()


@pytest.fixture(scope="session")
def gpt2(cache: None) -> GPT2Tokenizer:  # noqa: ARG001 (it has to come first)
    return GPT2Tokenizer()

"""A small text, which studies are run on."""

import numpy as np
import pytest

from resolvent.text import prepare
from tests.small_runs import WORDS


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("text")
    (folder / "words.txt").write_text(" ".join(np.random.default_rng(0).choice(WORDS, 1500)))
    return str(prepare([str(folder / "words.txt")], folder / "words", "bytes").folder)

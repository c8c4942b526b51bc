"""The reach of a text against its definition, and what is said of it."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from resolvent.cli import app
from resolvent.text import Corpus, Reach, TextError, prepare, reach
from resolvent.text.reach import LONGEST, CacheCounts, WindowLoss, mixed, trigram_probabilities, windows_up_to
from tests.text import reach_reference as reference

VOCABULARY = 5


def texts(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A training text that lacks a token, and one with a stretch that comes twice."""
    rng = np.random.default_rng(seed)
    train, tokens = rng.integers(0, VOCABULARY - 1, 70), rng.integers(0, VOCABULARY, 50)
    tokens[28:45] = tokens[4:21]
    return train.astype(np.uint16), tokens.astype(np.uint16)


@pytest.mark.parametrize("seed", [0, 1])
def test_it_is_its_definition(seed: int) -> None:
    train, tokens = texts(seed)
    base = trigram_probabilities(train, tokens, VOCABULARY)
    for window in (0, 1, 2, 3, 9, 20, 49, 1000):
        probability = mixed(base, *CacheCounts(tokens, LONGEST).within(window)) if window else base
        expected = reference.loss(train.tolist(), tokens.tolist(), VOCABULARY, window)
        assert -np.log(probability).mean() == pytest.approx(expected, rel=1e-12)
        assert (reference.LONGEST, len(probability)) == (LONGEST, len(tokens) - 1)


def test_probabilities_add_up_to_one() -> None:
    train, tokens = texts(0)
    sums = 0.0
    for token in range(VOCABULARY):  # as the last token of the text, in whose place all others are tried
        sums += trigram_probabilities(train, np.append(tokens[:-1], token).astype(np.uint16), VOCABULARY)[-1]
    assert sums == pytest.approx(1)
    hits = [CacheCounts(np.append(tokens[:-1], token), 3).within(20)[1][:, -1] for token in range(VOCABULARY)]
    assert np.sum(hits, axis=0).tolist() == CacheCounts(tokens, 3).within(20)[0][:, -1].tolist()


def test_targets_have_no_part_in_their_own_weights() -> None:
    """A change to one target of the first half changes that target, and all of the second half, fitted on it."""
    rng = np.random.default_rng(0)
    base, totals = rng.uniform(0.1, 1, 40), rng.integers(1, 9, (3, 40))
    hits = (totals * rng.uniform(0, 1, (3, 40))).astype(np.int64)
    before = mixed(base, totals, hits)
    hits[:, 5] = totals[:, 5]
    after = mixed(base, totals, hits)
    assert (before[:20] != after[:20]).nonzero()[0].tolist() == [5]
    assert (before[20:] != after[20:]).all()


@pytest.fixture(scope="module")
def repeating(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """Random letters, of which each stretch of 60 comes twice: only a window of more than 60 can tell."""
    folder, rng = tmp_path_factory.mktemp("reach"), np.random.default_rng(0)
    stretches = ["".join(rng.choice(list("abcdefghijklmnop"), 60)) for _ in range(200)]
    (folder / "a.txt").write_text("".join(stretch * 2 for stretch in stretches))
    return prepare(folder / "a.txt", folder / "out", "bytes", held_out=0.1)


def test_a_text_that_repeats_rewards_reach(repeating: Corpus) -> None:
    stages: list[str] = []
    offered = reach(repeating, 256, lambda stage, _: stages.append(stage))
    assert [each.window for each in offered.windows] == [8, 16, 32, 64, 128, 256]
    assert math.log(16) - 0.1 < offered.trigram < math.log(16) + 0.3  # nothing to learn, and little to overfit
    assert abs(offered.gain(8, 32)) < 0.1
    assert offered.gain(32, 128) > 0.8  # almost half of all letters are known
    assert offered.reading.startswith("This text rewards long reach: from 32 to 256 tokens of context an n-gram cache")
    assert set(stages) == {"counting", "windows"}
    assert offered.bits_per_byte(math.log(2)) == pytest.approx(1, abs=0.01)  # a byte is a token
    assert Reach.from_dict(json.loads(json.dumps(offered.to_dict()))) == offered


def test_the_reading() -> None:
    for gain, verdict in ((0.45, "rewards long reach:"), (0.25, "a little"), (0.15, "hardly")):
        offered = Reach(3.0, (WindowLoss(32, 2.5), WindowLoss(64, 2.5 - gain)), 100, 1000, 1.0)
        assert verdict in offered.reading
        assert f"{gain:.2f} nats per token" in offered.reading
    assert windows_up_to(100) == [8, 16, 32, 64, 100]
    assert windows_up_to(5) == [5]


def test_mistakes(repeating: Corpus) -> None:
    with pytest.raises(TextError, match=r"is too short for windows of 100,000 tokens: expected more tokens of valid"):
        reach(repeating, 100_000)
    with pytest.raises(TextError, match="expected a context of at least 2 tokens, got 1"):
        reach(repeating, 1)
    with pytest.raises(ValueError, match=r"unknown setting 'trigrams'.*Did you mean 'trigram'"):
        Reach.from_dict({"trigrams": 1.0})
    with pytest.raises(ValueError, match="expected a vocabulary of at most 1,048,576 tokens"):
        trigram_probabilities(np.zeros(9, int), np.zeros(9, int), 1 << 21)


def test_the_command(repeating: Corpus, tmp_path: Path) -> None:
    arguments = ["data", "context-gain", str(repeating.folder), "--context", "64"]
    shown = CliRunner().invoke(app, [*arguments, "--plot", str(tmp_path / "reach.png")], catch_exceptions=False)
    assert (tmp_path / "reach.png").stat().st_size > 10_000
    content = json.loads(CliRunner().invoke(app, [*arguments, "--json"], catch_exceptions=False).stdout)
    assert content.pop("reading") == shown.stdout.splitlines()[-1]
    assert Reach.from_dict(content) == reach(repeating, 64)

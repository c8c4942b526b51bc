"""A repr of one short line for everything that a shell or a notebook shows."""

from pathlib import Path

import torch

import resolvent as rv
from resolvent.train.record import read_records

RECORDS = Path(__file__).parent.parent / "docs" / "records"


def test_a_repr_is_one_short_line() -> None:
    model = rv.LanguageModel(rv.preset("tiny", pattern="dense"))
    profile, record = rv.analyze("exponential+cache", 256), read_records(RECORDS / "table1-small.jsonl")[0]
    _, used = rv.Mixer(64, 4, "exponential+cache").extend(torch.zeros(2, 10, 64), max_tokens="128k")
    assert profile.congestion is not None
    analyzed = [profile, profile.congestion, profile.congestion.routing, rv.congestion("local:4", 64), rv.compare(n=32)]
    caches = [used, rv.Mixer(64, 4, "first-order", rule="mamba2").make_cache(3), model.make_cache(1, 100)]
    values = [*analyzed, *caches, model.profile(64), record, record.evaluation]
    for value in values:
        assert "\n" not in repr(value)
        assert len(repr(value)) <= 160, repr(value)
        assert repr(value).startswith(type(value).__name__ + "(")
    assert "17 slots for 131,072 tokens" in repr(used)
    assert "10 tokens seen" in repr(used)

"""What diagnostics say, against dense matrices."""

import math

import pytest
import torch

import resolvent as rv
from resolvent.model import LanguageModel, ModelConfig, diagnose, layer_weights, watch_gates
from resolvent.model.diagnostics import inspect
from resolvent.ops.reference import transfer_by_hops
from tests.operator_cases import DEEP, TOLERANCE

ROUNDING = TOLERANCE[torch.float64]


def model_of(pattern: object, **changes: object) -> LanguageModel:
    torch.manual_seed(0)
    return LanguageModel(ModelConfig(layers=2, dim=32, heads=4, pattern=pattern, **changes)).double()


TOKENS = torch.randint(256, (2, 25), generator=torch.Generator().manual_seed(1))


FITTING = [
    (spec, rule)
    for spec in rv.PAPER_STRUCTURES
    for rule in ("softmax", "joint", "distance", "low-rank")
    if rv.rules.rule(rule).refusal(rv.pattern(spec)) is None
]


@pytest.mark.parametrize(("spec", "rule"), FITTING)
def test_against_matrices(spec: str, rule: str) -> None:
    model = model_of(spec, rule=rule)
    found = diagnose(model, TOKENS, hops=5)
    for layer, (weights,) in zip(found, layer_weights(model, TOKENS), strict=True):
        a, b = weights.matrices()
        inverse = torch.linalg.inv(torch.eye(25).double() - b)
        assert max(layer.row_sum_drift) < ROUNDING
        assert layer.resolvent_norm == pytest.approx(inverse.sum(-1).amax((0, 2)).tolist(), rel=DEEP * ROUNDING)
        terms = transfer_by_hops(a, b).sum(-1).mean((-1, 1))  # B^k A 1 averaged over tokens and batch: (K, heads)
        shares = torch.zeros(6, 4).double()
        shares.index_add_(0, torch.arange(len(terms)).clamp(max=5), terms / terms.sum(0))
        want = shares.T.tolist()
        for mine, theirs in zip(layer.hop_spectrum, want, strict=True):
            assert mine == pytest.approx(theirs, abs=ROUNDING)
            assert math.fsum(mine) == pytest.approx(1)


def test_signed_feedback_is_bounded_by_its_size() -> None:
    from resolvent.coefficients import Weights

    torch.manual_seed(0)
    p = rv.pattern("order:2")
    weights = Weights(torch.randn(1, 1, 9, 3).double(), torch.randn(1, 1, 9, 2).double(), p, p)
    _, b = weights.matrices()
    inverse = torch.linalg.inv(torch.eye(9).double() - b)
    assert weights.resolvent_norm()[0, 0] >= inverse.abs().sum(-1).max() * (1 - ROUNDING)


def test_gates_are_watched_in_training() -> None:
    model = model_of(["exponential+cache", "attention"])
    seen = []
    handle = model.mixers[0].coefficients.gate.register_forward_hook(lambda _m, _i, g: seen.append(g.detach()))
    with watch_gates(model) as watch:
        for part in TOKENS.split(1):
            model.loss(part, part).backward()
    handle.remove()
    model(TOKENS)  # no longer watched
    statistics = watch.statistics()
    assert list(statistics) == [0]
    gates = torch.cat(seen)  # (B, H, N)
    assert statistics[0].mean == pytest.approx(gates.mean((0, 2)).tolist())
    assert statistics[0].std == pytest.approx(gates.transpose(0, 1).flatten(1).std(1, correction=0).tolist())
    assert statistics[0].min == gates.amin((0, 2)).tolist()
    assert statistics[0].max == gates.amax((0, 2)).tolist()


def test_inspect() -> None:
    specs = [["attention", "attention", "exponential", "exponential"], "first-order"]
    model, text = model_of(specs, rule=["softmax", "linear"]).float(), list(b"hello there")
    view = inspect(model, text, 0, 3)
    assert view.title == "layer 0, head 3: exponential, softmax"
    _, b, t = view.matrices()
    assert b.any()
    assert t.sum(1) == pytest.approx(1, abs=TOLERANCE[torch.float32])
    assert not inspect(model, text, 0, 0).matrices()[1].any()
    assert inspect(model, [1, 2, 3], 1, 31).matrices()[0].shape == (3, 3)
    assert inspect(model, [7]).layers[1].hop_spectrum[0][0] == 1
    for options, message in [
        (([], 0, 0), "at least one token"),
        (([1, 2], 2, 0), "a layer from 0 to 1"),
        (([1, 2], 0, 4), "a head from 0 to 3"),
        (([300], 0, 0), "from 0 to 255"),
    ]:
        with pytest.raises(ValueError, match=message):
            inspect(model, *options)

"""What a layer refuses, and how it says so."""

import pytest
import torch

import resolvent as rv
from resolvent.errors import SettingError
from resolvent.rules import rule as rule_of


@pytest.mark.parametrize(("options", "message"), [
    ({"dim": 10, "heads": 4}, "expected heads to divide dim, got dim=10 and heads=4"),
    ({"kv_heads": 3}, "expected kv_heads to divide the 4 heads, got 3"),
    ({"head_dim": 0}, "expected head_dim ≥ 1, got 0"),
    ({"rope": False}, "expected a number > 0 such as 10000.0, or None, got False"),
    ({"rope": -1.0}, "expected a number > 0"),
    ({"head_dim": 5}, "expected an even head_dim, got 5"),
    ({"backend": "cpuu"}, "unknown backend 'cpuu': expected auto or dense, cpu, triton, torch, .* Did you mean 'cpu'"),
    ({"pattern": ["dense"] * 3}, "one for each of the 4 heads, got 3"),
    ({"pattern": [*["dense"] * 3, "local:4"], "kv_heads": 2}, "expected a multiple of 2 heads for dense, got 3"),
    ({"pattern": "dense", "rule": "mamba2"}, "the 'mamba2' rule needs a first-order pattern.* that fit it: softmax"),
    ({"pattern": "attention", "rule": "tied"}, "the 'tied' rule needs a pattern with feedback .there is no B"),
    ({"pattern": "local:4/order:2", "rule": "tied"}, "the 'tied' rule needs a pattern whose A and B read the same"),
    ({"pattern": "local:4/first-order", "rule": "mamba2"}, "the 'mamba2' rule needs a first-order pattern"),
    ({"pattern": "local:4/order:2", "rule": "low-rank"}, "needs attention for A, as in 'attention/exponential'"),
    ({"pattern": "local:4", "rule": "low-rank"}, "needs attention or a pattern with feedback .*not a window"),
    ({"pattern": "first-order", "rule": "linear", "backend": "cpu"}, "expected backend='auto', got 'cpu'"),
])  # fmt: skip
def test_layers(options: dict[str, object], message: str) -> None:
    settings = {"dim": 16, "heads": 4, "pattern": "exponential"} | options
    with pytest.raises(ValueError, match=message):
        rv.Mixer(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(("spec", "message"), [
    ("softmx", "unknown rule 'softmx': expected softmax.*Did you mean 'softmax'"),
    ("softmax:gat=half", "expected conv=… or gate=…, got 'gat=half'. Did you mean 'gate'"),
    ("mamba1:skip=yes", "'mamba1:skip=yes': expected true or false for skip, got 'yes'"),
    ("mamba2:input=compliment", "expected input to be step or complement, got 'compliment'.*Did you mean 'complement'"),
    ("mamba1:vectors=ones", "without vectors all states would be read alike: expected state=1, got 16"),
    ("mamba2:state=big", "expected an integer for state, got 'big'"),
    ("mamba2:state=" + "9" * 5000, "expected an integer for state, got '9{24}'"),
    ("mamba2:state=0", "expected state to be an integer ≥ 1, got 0"),
    ("mamba1:decay=half", "expected decay to be mamba or a number between 0 and 1, got 'half'"),
    ("mamba1:decay=1", "expected decay to be mamba or a number between 0 and 1, got '1'"),
    ("linear:conv=-1", "expected an integer for conv, got '-1'"),
    ("softmax:gate=1.5", "expected gate as mamba, half.*got '1.5'"),
    ("softmax:gate=token@1", "expected gate as mamba"),
    ("distance:shape=round", "expected shape to be toeplitz or decay or constant, got 'round'"),
])  # fmt: skip
def test_spellings(spec: str, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        rule_of(spec)


def test_spellings_are_read_back() -> None:
    for spec in (
        "softmax:conv=4", "tied:gate=0.5", "mamba1:state=64,decay=0.5", "distance:gate=scalar@0.3,shape=decay",
        "mamba2:state=1,input=complement,vectors=ones,skip=true,groups=3",
    ):  # fmt: skip
        assert str(rule_of(spec)) == spec
        assert rule_of(str(rule_of(spec))) == rule_of(spec)


def test_caches_of_others() -> None:
    x = torch.randn(1, 3, 16)
    layers = {
        "slots": rv.Mixer(16, 4, "exponential"),
        "state": rv.Mixer(16, 4, "first-order", rule="mamba2"),
        "several": rv.Mixer(16, 4, ["dense", "dense", "local:4", "local:4"]),
    }
    for name, layer in layers.items():
        for other, source in layers.items():
            if other != name:
                with pytest.raises(ValueError, match="expected a cache of this model, made of"):
                    layer.extend(x, source.make_cache())
    with pytest.raises(ValueError, match="expected a cache of 1 sequences, got one of 2"):
        layers["slots"].extend(x, layers["slots"].make_cache(2))
    with pytest.raises(ValueError, match="max_tokens is for a new cache"):
        layers["slots"].extend(x, layers["slots"].make_cache(), max_tokens=5)
    two = rv.LanguageModel(rv.ModelConfig(layers=2, dim=16, heads=2))
    three = rv.LanguageModel(rv.ModelConfig(layers=3, dim=16, heads=2))
    for model, cache in ((two, three.make_cache()), (three, two.make_cache())):
        with pytest.raises(ValueError, match="expected a cache of this model"):
            model.extend(torch.tensor([[1]]), cache)


def test_shapes() -> None:
    with pytest.raises(ValueError, match=r"expected x of shape \(B, N, 16\) with N ≥ 1, got \(3, 8\)"):
        rv.Mixer(16, 4, "dense")(torch.randn(3, 8))
    model = rv.LanguageModel(rv.ModelConfig(layers=1, dim=16, heads=2))
    with pytest.raises(ValueError, match=r"expected targets of shape \(1, 4\)"):
        model.loss(torch.zeros(1, 4, dtype=torch.int64), torch.zeros(4, 1, dtype=torch.int64))


def test_empty_batches() -> None:
    for spec, rule in [
        ("exponential", "joint"),
        ("first-order", "mamba2"),
        ("dense", "softmax"),
        ("attention", "low-rank"),
    ]:
        assert rv.Mixer(16, 4, spec, rule=rule)(torch.randn(0, 5, 16)).shape == (0, 5, 16)


def test_autocast_as_in_the_readme() -> None:
    layer, x = rv.Mixer(16, 4, "exponential+cache"), torch.randn(1, 9, 16)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        y, _ = layer.extend(x, layer.make_cache(1, 20))
        model = rv.LanguageModel(rv.ModelConfig(layers=2, dim=16, heads=2))
        assert len(model.generate([[1, 2]], 4)[0]) == 4
        layer.double()(x.double())
    assert y.dtype == torch.bfloat16


def test_states_stay_in_float32() -> None:
    layer, x = rv.Mixer(16, 4, "first-order", rule="mamba2"), torch.randn(1, 9, 16)
    cache = layer.make_cache()
    cache.snapshot()
    layer.extend(x, cache)
    half = cache.to(torch.bfloat16)
    assert half.nbytes == cache.nbytes
    cache.rewind(0)
    torch.testing.assert_close(layer.extend(x, cache)[0], layer(x))


def test_everything_begins_anew() -> None:
    cases = [
        ("exponential", "tied:gate=scalar@0.4"),
        ("dense", "distance"),
        ("dense", "distance:shape=decay"),
        ("first-order", "linear:form=griffin"),
        ("first-order", "mamba2"),
    ]
    for spec, rule in cases:
        config = rv.ModelConfig(layers=1, dim=16, heads=2, pattern=spec, rule=rule)
        model = rv.LanguageModel(config)
        starts = []
        for _ in range(2):
            with torch.no_grad():
                for p in model.parameters():
                    p.fill_(7 + len(starts))
            torch.manual_seed(3)
            model.reset_parameters()
            starts.append({name: p.detach().clone() for name, p in model.named_parameters()})
        for name, first in starts[0].items():
            assert torch.equal(first, starts[1][name]), name
            assert first.isfinite().all()

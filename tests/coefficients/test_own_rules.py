"""A rule from outside the package: the one that the documents show, in a script of its own."""

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import resolvent as rv
from resolvent.coefficients import CoefficientModule, make_coefficients
from resolvent.coefficients.softmax import SoftmaxCoefficients
from resolvent.model import LanguageModel
from resolvent.rules import RULES, GatedRule
from resolvent.rules.softmax import Softmax

PAGE = Path(__file__).parents[2] / "docs" / "coefficients.md"
USE = """
torch.manual_seed(0)
layer, x = layer.double(), torch.randn(2, 40, 32, dtype=torch.float64)
y = layer(x)
y.sum().backward()
assert all(p.grad is not None for p in layer.parameters())
y0, cache = layer.extend(x[:, :25])
steps = [layer.extend(x[:, i : i + 1], cache)[0] for i in range(25, 40)]
torch.testing.assert_close(torch.cat([y0, *steps], 1), y)
a, b = layer.weights(x)[0].matrices()
torch.testing.assert_close((a + b).sum(-1), torch.ones(2, 2, 40).double())
config = rv.ModelConfig(vocab_size=9, layers=2, dim=32, heads=2, rule=["cosine:sharpness=8", "softmax"])
model, tokens = rv.LanguageModel(config), torch.arange(18).reshape(2, 9) % 9
model.save("model")
loaded = rv.LanguageModel.load("model")
assert torch.equal(loaded(tokens), model(tokens))
assert loaded.config.rule == ("cosine:sharpness=8", "softmax")
assert len(loaded.generate([[1, 2]], 6, temperature=0)[0]) == 6
assert rv.analyze("exponential+cache", 64, rule="cosine").n == 64
print("done")
"""


def test_the_rule_of_the_documents(tmp_path: Path) -> None:
    """In a layer, decoded, in a saved model and in analysis; where it is unknown, an error says what to do."""
    (shown,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    (tmp_path / "script.py").write_text(shown + USE)
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "done\n"
    with pytest.raises(
        ValueError,
        match=r"model has a rule that is not registered: .*unknown rule 'cosine'.*known after resolvent\.register_rule",
    ):
        LanguageModel.load(tmp_path / "model")


@dataclass(frozen=True)
class Own(GatedRule):
    name = "own"
    summary = "none"


@dataclass(frozen=True)
class Nameless(GatedRule):
    summary = "none"
    size: int = None  # type: ignore[assignment]


@dataclass(frozen=True)
class Taken(GatedRule):
    name = "softmax"
    summary = "none"


def test_what_cannot_be_registered() -> None:
    for rule, module, message in (
        (Softmax(), SoftmaxCoefficients, "expected a dataclass derived from resolvent.rules.Rule"),
        (Own, object, "expected a class derived from resolvent.coefficients.CoefficientModule"),
        (Nameless, CoefficientModule, "expected Nameless to give name a value of its own"),
        (Taken, SoftmaxCoefficients, "the rule 'softmax' is one of resolvent's"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            rv.register_rule(rule, module)  # type: ignore[arg-type]
    assert "own" not in RULES
    layer = rv.Mixer(16, 2, "exponential").layer
    with pytest.raises(TypeError, match=r"no module learns the rule Own: call resolvent\.register_rule"):
        make_coefficients(type(layer)(**{name: getattr(layer, name) for name in LAYER} | {"rule": Own()}))


LAYER = ("dim", "heads", "kv_heads", "head_dim", "patterns", "rope", "bias", "backend")

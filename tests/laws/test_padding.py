"""Padding on the left changes nothing: outputs, gradients of inputs and of parameters, whatever stands in it."""

import math

import pytest
import torch
from torch import Tensor

import resolvent as rv
from tests.mixers import CASES, make
from tests.operator_cases import DEEP, FEW_READS, JOINT, PAIRED, Spec, assert_close, extend, mix, mixer_inputs

N, STARTS = 20, (7, 0)
BY_TOKEN = torch.linspace(0, 2, 2 * 3 * N).reshape(2, 3, N).double()  # what ties A to B, with NaN in the padding, too
OPTIONS = {
    "plain": {},
    "joint": JOINT,
    "tied": {"tied": torch.tensor([0.3, -0.2, 1.5]).double()},
    "tied by token": {"tied": BY_TOKEN},
}


def poisoned(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """NaN in every padded row."""
    spoiled = {name: t.clone() for name, t in inputs.items()}
    for t in spoiled.values():
        for row, start in enumerate(STARTS):
            t[row, :, :start] = math.nan
    return {name: t.requires_grad_() for name, t in spoiled.items()}


def by_token(option: object) -> bool:
    return isinstance(option, Tensor) and option.ndim == 3


def alone(inputs: dict[str, Tensor], spec: Spec, options: dict[str, object]) -> Tensor:
    """Each sequence without its padding, zeros in its place."""
    rows = []
    for row, start in enumerate(STARTS):
        own = {name: v[row : row + 1, :, start:] if by_token(v) else v for name, v in options.items()}
        y = mix({name: t[row : row + 1, :, start:] for name, t in inputs.items()}, spec, **own)
        rows.append(torch.nn.functional.pad(y, (0, 0, start, 0)))
    return torch.cat(rows)


SPECS: list[Spec] = ["exponential", "quadratic+cache", "first-order", "dense", "offsets:2,5", FEW_READS, "binomial:4"]
CALLS = [(spec, option) for spec in SPECS for option in OPTIONS]
CALLS += [(spec, option) for spec in PAIRED for option in ("plain", "joint")]


@pytest.mark.parametrize(("spec", "option"), CALLS)
def test_every_option_of_the_operator(spec: Spec, option: str) -> None:
    """With NaN in the padding; in `mix` and `extend`; gradients of every input, and of what ties A to B."""
    clean = mixer_inputs(N, torch.float64)
    leaves = {name: t.clone().requires_grad_() for name, t in clean.items()}
    options = {name: v.clone().requires_grad_() if isinstance(v, Tensor) else v for name, v in OPTIONS[option].items()}
    learned = [v for v in options.values() if isinstance(v, Tensor)]
    weights = torch.randn(clean["x"].shape).double()
    exact = alone(leaves, spec, options)
    expected = torch.autograd.grad((exact * weights).sum(), [*leaves.values(), *learned], allow_unused=True)
    spoiled = poisoned(clean)
    options |= poisoned({name: v.detach() for name, v in options.items() if by_token(v)})
    learned = [v for v in options.values() if isinstance(v, Tensor)]
    y = mix(spoiled, spec, start=list(STARTS), **options)
    gradients = torch.autograd.grad((y * weights).sum(), [*spoiled.values(), *learned], allow_unused=True)
    assert_close(y, exact)
    for name, mine, theirs in zip([*clean, "tied"], gradients, expected, strict=False):
        assert (mine is None) == (theirs is None), name
        if mine is not None:
            assert_close(mine, theirs, what=name)
    run = rv.pattern(spec).with_diagonal_a() if learned else rv.pattern(spec)
    for chunks in ([N], [9, N - 9]):
        cache = rv.decode_cache(run, 2, 3, 5, 7, dtype=torch.float64, **(JOINT if option == "joint" else {}))
        outputs, first = [], 0
        for size in chunks:
            chunk = {name: t[:, :, first : first + size] for name, t in spoiled.items()}
            start = [min(max(s - first, 0), size) for s in STARTS]
            own = {name: v[:, :, first : first + size] if by_token(v) else v for name, v in options.items()}
            outputs.append(extend(chunk, spec, cache, start=start, **own))
            first += size
        assert_close(torch.cat(outputs, 2), exact)


@pytest.mark.parametrize(("spec", "rule"), CASES)
def test_every_rule(spec: Spec, rule: str) -> None:
    """A layer whose input has NaN in the padding: outputs of each sequence alone, and equal gradients of its input and
    of every parameter.
    """
    mixer = make(spec, rule)
    x = torch.randn(2, N, 24).double().requires_grad_()
    (spoiled,) = poisoned({"x": x.detach()[:, None]}).values()
    mask = torch.arange(N) >= torch.tensor(STARTS)[:, None]
    y = mixer(spoiled[:, 0], start=list(STARTS))
    rows = [torch.nn.functional.pad(mixer(x[b : b + 1, s:]), (0, 0, s, 0)) for b, s in enumerate(STARTS)]
    exact = torch.cat(rows)
    assert_close(y[mask], exact[mask], factor=DEEP)
    assert y.isfinite().all()
    parameters = dict(mixer.named_parameters())
    weights = torch.randn(exact.shape).double() * mask[..., None]
    mine = torch.autograd.grad((y * weights).sum(), [spoiled, *parameters.values()], allow_unused=True)
    theirs = torch.autograd.grad((exact * weights).sum(), [x, *parameters.values()], allow_unused=True)
    for name, one, other in zip(["x", *parameters], mine, theirs, strict=True):
        assert (one is None) == (other is None), name
        if one is not None:
            assert_close(one.reshape(other.shape), other, what=name, factor=DEEP)
    for chunks in ([N], [9, N - 9]):  # the second chunk has no padding: the first one's must not be in the cache
        cache, outputs, first = None, [], 0
        for size in chunks:
            start = [min(max(s - first, 0), size) for s in STARTS]
            out, cache = mixer.extend(spoiled[:, 0, first : first + size].detach(), cache, start=start)
            outputs.append(out)
            first += size
        assert_close(torch.cat(outputs, 1)[mask], exact[mask], factor=DEEP)

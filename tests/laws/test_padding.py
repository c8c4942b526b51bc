"""Padding on the left changes nothing, whatever stands in it: the options of the operator, in one pass and decoding."""

import math

import pytest
import torch
from torch import Tensor

import resolvent as rv
from tests.operator_cases import FEW_READS, JOINT, Spec, assert_close, extend, mix, mixer_inputs

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


CALLS: list[tuple[Spec, str]] = [
    ("exponential", "plain"), ("quadratic+cache", "plain"), ("dense", "plain"), (FEW_READS, "plain"),
    ("local:8/exponential+cache", "plain"), ("first-order", "joint"), ("dense", "joint"), ("offsets:2,5", "joint"),
    ("binomial:4", "joint"), ("attention/first-order", "joint"), ("exponential", "tied"), ("quadratic+cache", "tied"),
    (FEW_READS, "tied"), ("first-order", "tied by token"), ("dense", "tied by token"), ("binomial:4", "tied by token"),
]  # fmt: skip


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

"""Equal but for rounding: tolerances from the tests' table, widened by what rounding of the inputs alone would do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fuzz.case import Case, Difference
from tests.operator_cases import TOLERANCE

Tensors = dict[str, Tensor]
_STEP = 1e-7  # of the perturbation from which sensitivity is estimated: small, and far above float64's rounding
_ROUNDINGS = 64.0  # how many roundings of every input an algorithm may be worth
_MOST_SENSITIVE = 1e7  # beyond, even float64 has few digits left: such a case says nothing


@dataclass(frozen=True)
class Exact:
    """Outputs y and gradients d… in float64, and how much each changes by a relative change of all inputs."""

    values: Tensors
    sensitivity: Mapping[str, float]

    @property
    def useless(self) -> bool:
        """Not finite, or so ill-conditioned that rounding alone changes everything."""
        finite = all(bool(t.isfinite().all()) for t in self.values.values())
        return not finite or max(self.sensitivity.values()) > _MOST_SENSITIVE

    def tolerance(self, name: str, dtype: torch.dtype, factor: float) -> float:
        exact = self.values[name]
        scale = max(float(exact.abs().max()), 1.0) if exact.numel() else 1.0
        computed = torch.float64 if dtype == torch.float64 else torch.float32
        rounding = _ROUNDINGS * torch.finfo(computed).eps * self.sensitivity[name]
        return factor * (TOLERANCE[dtype] * scale + rounding)

    def check(self, name: str, mine: Tensor, dtype: torch.dtype, what: str, factor: float = 1.0) -> None:
        exact, most = self.values[name], self.tolerance(name, dtype, factor)
        if mine.shape != exact.shape:
            raise Difference(f"{what}: {name} has shape {tuple(mine.shape)}, expected {tuple(exact.shape)}.")
        mine = mine.detach()
        error = (mine.double() - exact).abs()
        if error.numel() and not float(error.max()) <= most:
            worst = [int(i) for i in torch.unravel_index(error.nan_to_num(torch.inf).argmax(), error.shape)]
            raise Difference(
                f"{what}: {name}{worst} is {float(mine[tuple(worst)]):.9g}, expected {float(exact[tuple(worst)]):.9g}; "
                f"largest difference {float(error.max()):.3g}, allowed {most:.3g}."
            )


def differentiate(
    run: Callable[[Tensors], Tensor], tensors: Tensors, weights: Tensor | None, wanted: list[str]
) -> Tensors:
    """y, and d… of the sum of weights · y for each tensor that is wanted; they keep their layout."""
    leaves = {name: t.detach().requires_grad_(name in wanted) for name, t in tensors.items()}
    y = run(leaves)
    if not wanted:
        return {"y": y.detach()}
    if not y.requires_grad:  # nothing wanted matters here
        return {"y": y} | {f"d{name}": torch.zeros_like(leaves[name]) for name in wanted}
    given = torch.ones_like(y) if weights is None else weights.to(y.dtype)
    gradients = torch.autograd.grad(
        y, [leaves[name] for name in wanted], given, materialize_grads=True, allow_unused=True
    )
    return {"y": y.detach()} | {f"d{name}": g for name, g in zip(wanted, gradients, strict=True)}


def exactly(
    case: Case, run: Callable[[Tensors], Tensor], tensors: Tensors, weights: Tensor | None, wanted: list[str]
) -> Exact:
    """What `run` gives in float64, and again with all inputs slightly changed."""
    doubles = {name: t.detach().double() for name, t in tensors.items()}
    values = differentiate(run, doubles, weights, wanted)
    generator = case.generator()
    moved = {name: _moved(name, t, generator) for name, t in doubles.items()}
    other = differentiate(run, moved, weights, wanted)
    changes = {name: (other[name] - t).abs() / _STEP for name, t in values.items()}
    return Exact(values, {name: float(t.max()) if t.numel() else 0.0 for name, t in changes.items()})


def _moved(name: str, t: Tensor, generator: torch.Generator) -> Tensor:
    """Every entry by a part of itself; those of vectors by a part of their usual size, too. Gates stay gates."""
    noise = torch.randn(t.shape, dtype=t.dtype, generator=generator)
    size = t.abs()
    if name != "gate":
        finite = torch.where(t.isfinite(), t, 0)
        size = size + finite.square().mean().sqrt() if t.numel() else size
    moved = t + _STEP * noise * size
    return moved.clamp(max=1.0) if name == "gate" else moved

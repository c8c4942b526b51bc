"""What a whole stack costs: parameters, multiply-adds, cache, hops. Models without numbers serve to count them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from resolvent.analysis.cost import Cost, cost
from resolvent.analysis.hops import hops
from resolvent.analysis.profile import plural
from resolvent.coefficients.layer import Layer
from resolvent.patterns import Pattern
from resolvent.rules import Rule

if TYPE_CHECKING:
    from resolvent.model.language_model import LanguageModel


@dataclass(frozen=True)
class LayerProfile:
    """One layer of the stack. Hops: the most that any pair needs within it; None if some pair has no path.

    training_bytes_per_token  what the operator keeps for its backward pass
    """

    patterns: tuple[str, ...]
    rule: str
    mixer_parameters: int
    mixing_madds_per_token: float
    training_bytes_per_token: int
    cache_bytes: int
    max_hops: int | None
    reach: int


@dataclass(frozen=True)
class StackProfile:
    """The whole model on n tokens, in float32.

    madds_per_token  multiply-adds of a forward pass: projections, mixing, MLPs and the head
    mixing_share     how much of them is mixing along the sequence, the part that depends on the pattern
    cache_bytes      of all layers together, for one sequence of n tokens
    max_hops         the most hops any token's information needs to any later one: what the best layer does alone, or
                     None where the layers together do not reach that far
    reach            how many tokens back information can come from
    """

    n: int
    parameters: int
    embedding_parameters: int
    madds_per_token: float
    mixing_share: float
    cache_bytes: int
    max_hops: int | None
    reach: int
    layers: tuple[LayerProfile, ...]

    def to_dict(self) -> dict[str, object]:
        return asdict(self)

    def __repr__(self) -> str:
        hop_text = "not all connected" if self.max_hops is None else plural(self.max_hops, "hop")
        return (
            f"StackProfile({plural(len(self.layers), 'layer')}, n={self.n:,}: {self.parameters:,} parameters, "
            f"{self.cache_bytes / 1024:,.0f} KiB of cache, {hop_text})"
        )

    def __str__(self) -> str:
        return "\n".join([self._title, *(f"  {name:14} {value}" for name, value in self._rows())])

    @property
    def _title(self) -> str:
        return f"on {plural(self.n, 'token')}"

    def _rows(self) -> list[tuple[str, str]]:
        hop_text = (
            f"none reach all of it: {plural(self.reach, 'token')} back"
            if self.max_hops is None
            else f"{self.max_hops:,} at most"
        )
        rows = [
            ("parameters", f"{self.parameters:,}, of which embedding {self.embedding_parameters:,}"),
            (
                "multiply-adds",
                f"{self.madds_per_token:,.0f} per token, {self.mixing_share:.1%} of them along the sequence",
            ),
            ("cache", f"{self.cache_bytes / 1024:,.0f} KiB for one sequence"),
            ("hops", hop_text),
        ]
        kinds: dict[tuple[str, str], int] = {}
        for layer in self.layers:
            key = (" | ".join(dict.fromkeys(layer.patterns)), layer.rule)
            kinds[key] = kinds.get(key, 0) + 1
        stack = [("layers", f"{count} × {name}, {rule}") for (name, rule), count in kinds.items()]
        return stack + rows


def profile(model: LanguageModel, n: int) -> StackProfile:
    """See `StackProfile`."""
    config = model.config
    layers = tuple(_layer(mixer.layer, sum(p.numel() for p in mixer.parameters()), n) for mixer in model.mixers)
    most, reach = _through_the_stack([mixer.layer for mixer in model.mixers], layers, n)
    matrices = sum(p.numel() for p in model.blocks.parameters() if p.ndim == 2)
    mixing = sum(layer.mixing_madds_per_token for layer in layers)
    madds = matrices + config.embedding_rows * config.dim + mixing
    return StackProfile(
        n=n,
        parameters=model.parameter_count(),
        embedding_parameters=model.embedding.weight.numel(),
        madds_per_token=madds,
        mixing_share=mixing / madds,
        cache_bytes=sum(layer.cache_bytes for layer in layers),
        max_hops=most,
        reach=reach,
        layers=layers,
    )


def _layer(layer: Layer, parameters: int, n: int) -> LayerProfile:
    groups = layer.groups()
    costs: list[Cost] = [
        cost(
            g.pattern, n, heads=g.count, head_dim=layer.head_dim, rule=layer.rule, kv_heads=g.kv_count, rope=layer.rope
        )
        for g in groups
    ]
    reaches = [_hops(layer.rule, g.pattern, n) for g in groups]
    complete = [most for most, _ in reaches if most is not None]
    return LayerProfile(
        patterns=tuple(str(p) for p in layer.patterns) if len(groups) > 1 else (str(groups[0].pattern),),
        rule=str(layer.rule),
        mixer_parameters=parameters,
        mixing_madds_per_token=sum(c.forward_madds_per_token for c in costs),
        training_bytes_per_token=sum(c.training_bytes_per_token for c in costs),
        cache_bytes=sum(c.cache_bytes for c in costs),
        max_hops=min(complete) if complete else None,
        reach=max(reach for _, reach in reaches),
    )


def _hops(rule: Rule, p: Pattern, n: int) -> tuple[int | None, int]:
    """The most hops within a layer, None if some pair has no path, and how far back it reaches."""
    if rule.reach(p, n) == n - 1:
        return 1, n - 1
    distances = hops(p, n)
    if not distances.unreachable_pairs:
        return distances.max, n - 1
    last = p.stages[0].farthest
    return None, n - 1 if p.recurrent or last is None else min(last, n - 1)


def _through_the_stack(stack: list[Layer], layers: tuple[LayerProfile, ...], n: int) -> tuple[int | None, int]:
    """The most hops that any pair needs through all layers, None if one has no path, and how far back that reaches.

    A layer that connects everything settles it, with what it needs alone. Otherwise distances are added up: a layer
    without feedback goes one stride or none, a layer with feedback as many as it takes.
    """
    complete = [layer.max_hops for layer in layers if layer.max_hops is not None]
    if complete:
        return min(complete), n - 1
    needed = np.full(n, np.inf)
    needed[0] = 0
    for layer in stack:
        ways = needed.copy()
        for group in layer.groups():
            p = group.pattern
            strides = p.offsets(n).tolist() if p.is_shifted(n) else []  # others are left out: a bound from above
            at = ways if p.recurrent else needed
            for d in range(1, n) if p.recurrent else [n]:
                for f in strides:
                    if p.recurrent and f <= d:
                        at[d] = min(at[d], at[d - f] + 1)
                    elif not p.recurrent:
                        np.minimum(ways[f:], at[: n - f] + 1, out=ways[f:])
        needed = ways
    reached = np.flatnonzero(np.isfinite(needed))
    return int(needed.max()) if len(reached) == n else None, int(reached.max())


# Functions that initialize parameters, and for whose results on `meta` torch first imports its compiler, for two
# seconds. Others run as they are.
_DRAWN = {"normal_", "trunc_normal_"}
_COMPUTED = {
    *("exp", "expm1", "log", "log1p", "logit", "softplus", "neg", "__neg__", "clamp", "pow", "__pow__", "__rpow__"),
    *("add", "__add__", "__radd__", "sub", "rsub", "__sub__", "__rsub__", "mul", "__mul__", "__rmul__"),
    *("div", "__truediv__", "__rtruediv__"),
}


@contextmanager
def without_numbers() -> Iterator[None]:
    """Tensors that are made inside have a shape and nothing else, so that any size takes no memory."""
    with torch.device("meta"), _ShapesAlone():
        yield


class _ShapesAlone(TorchFunctionMode):
    """Drawing numbers does nothing, arithmetic only broadcasts shapes."""

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        named, name = kwargs or {}, getattr(func, "__name__", "")
        tensors = [each for each in (*args, *named.values()) if isinstance(each, Tensor)]
        if name in _DRAWN:
            return tensors[0]
        if name in _COMPUTED:
            return tensors[0].new_empty(torch.broadcast_shapes(*(each.shape for each in tensors)))
        return func(*args, **named)

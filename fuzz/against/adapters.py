"""What cases ask of the package, one function for each of its public surfaces.

Both trees run this file. Where a surface changes, its function here accepts the new one beside the old one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import resolvent as rv

Tensors = Mapping[str, Tensor]
UNSPELLED = ("table", "few-reads", "endless")


@cache
def pattern(name: str) -> Any:
    """A pattern by its spelling, or one of those that have none: few reads are none in most rows."""
    if name == "endless":
        return rv.explicit(_scattered)
    return rv.explicit(_table(0.6 if name == "table" else 0.03)) if name in UNSPELLED else rv.pattern(name)


def _table(chance: float, n: int = 640) -> np.ndarray:
    random = np.random.default_rng(0).random((n, n))
    return np.tril(random < chance / (1 + np.arange(n)[:, None] / 20), -1)


def _scattered(i: int) -> list[int]:
    return sorted({i - 1, *((i * i * factor + factor) % max(i, 1) for factor in (3, 7, 11))}) if i else []


def masks(name: str, n: int) -> list[Tensor]:
    """The non-zeros of A and of B."""
    return [torch.from_numpy(pattern(name).mask(n, side)) for side in "ab"]


def mix(t: Tensors, name: str, **options: object) -> Tensor:
    return rv.mix(t["x"], pattern(name), **_scores(t), tied=t.get("tied"), **options)


def _scores(t: Tensors) -> dict[str, Any]:
    return {"a": (t["qa"], t["ka"]), "b": (t["qb"], t["kb"]), "gate": t["gate"]}


def solve(t: Tensors, name: str, backend: str) -> Tensor:
    return rv.solve(t["x"], pattern(name), t["alpha"], t.get("beta"), backend=backend)


class Decoder:
    """The operator with a cache."""

    def __init__(self, t: Tensors, name: str, max_tokens: int | None = None, normalize: str = "gate", **options: Any):
        sizes = len(t["x"]), t["qa"].shape[1], t["x"].shape[-1], t["qa"].shape[-1]
        self.name, self.options = name, {"normalize": normalize, **options}
        memory = {"max_tokens": max_tokens, "dtype": t["x"].dtype, "kv_heads": t["x"].shape[1]}
        self.cache = rv.decode_cache(pattern(name), *sizes, normalize=normalize, **memory)

    def extend(self, t: Tensors, **options: object) -> Tensor:
        return rv.extend(t["x"], pattern(self.name), self.cache, **_scores(t), **self.options, **options)

    def change(self, method: str, *arguments: object) -> None:
        changed = getattr(self.cache, method)(*arguments)
        self.cache = self.cache if changed is None else changed

    @property
    def nbytes(self) -> int:
        return self.cache.nbytes


def layer(names: Sequence[str], rule: str, dim: int, heads: int, **options: Any) -> nn.Module:
    """A layer with one pattern for all heads, or with one for each."""
    torch.manual_seed(0)
    patterns = [pattern(name) for name in names]
    return rv.Mixer(dim, heads, patterns[0] if len(patterns) == 1 else patterns, rule=rule, **options)


def layer_matrices(mixer: nn.Module, x: Tensor) -> list[tuple[Tensor, Tensor]]:
    """A and B written out, for each group of heads."""
    return [each.matrices() for each in mixer.weights(x)]


def model(**config: Any) -> nn.Module:
    names = config.pop("pattern")
    given = pattern(names) if isinstance(names, str) else names
    return rv.LanguageModel.seeded(rv.ModelConfig(pattern=given, **config), 0)


def whole(module: nn.Module, x: Tensor, cuts: list[int] | None = None, starts: list[int] | None = None) -> Tensor:
    """All of a sequence, by a layer or a model."""
    return module(x, cu_seqlens=cuts, start=starts)


def in_chunks(module: nn.Module, chunks: Iterable[Tensor], starts: list[int] | None = None) -> list[Tensor]:
    """A sequence in chunks out of a cache, the first of which may be padded, by a layer or a model."""
    cache, outputs = None, []
    for chunk in chunks:
        y, cache = module.extend(chunk, cache, start=starts if cache is None else None)
        outputs.append(y)
    return outputs


def loss(lm: nn.Module, tokens: Tensor, targets: Tensor) -> Tensor:
    return lm.loss(tokens, targets)


def generate(lm: nn.Module, prompts: list[list[int]], tokens: int, **options: Any) -> list[list[int]]:
    return lm.generate(prompts, tokens, **options)


def diagnose(lm: nn.Module, tokens: Tensor) -> object:
    return [each.to_dict() for each in rv.diagnose(lm, tokens)]


def hops(name: str, n: int) -> dict[str, object]:
    found = rv.hops(pattern(name), 4 * n)
    figures = {"max": found.max, "mean": found.mean, "unreachable": found.unreachable_pairs}
    return figures | {
        "matrix": rv.hop_matrix(pattern(name), n),
        "masks": masks(name, n),
        "slots": pattern(name).slots(n),
    }


def analyze(name: str, n: int, **options: Any) -> dict[str, object]:
    profile = rv.analyze(pattern(name), n, **options)
    return profile.to_dict() | {"routing": _routing(name, profile.congestion)}


def congestion(name: str, n: int, effort: str) -> dict[str, object]:
    bounds = rv.congestion(pattern(name), n, effort)
    figures = {"lower": bounds.lower, "upper": bounds.upper, "by": [bounds.lower_by, bounds.upper_by]}
    return figures | {"routing": _routing(name, bounds)}


def _routing(name: str, bounds: Any) -> dict[str, object]:
    """Its paths, and the congestion that they have."""
    if bounds is None or bounds.routing is None:
        return {}
    found = bounds.routing
    return {"starts": found.starts, "nodes": found.nodes, "verified": rv.verify(pattern(name), found)}


def cost(name: str, rule: str, n: int) -> dict[str, object]:
    return vars(rv.cost(pattern(name), n, rule=rule))


def compare(names: Sequence[str], n: int) -> dict[str, object]:
    return {profile["pattern"]: profile for profile in rv.compare(*map(pattern, names), n=n).to_dict()}


def design(n: int, **budget: Any) -> dict[str, object]:
    """Candidates and frontier by their labels: where one more is there, all others can still be compared."""
    found = rv.design(n, **budget).to_dict()
    return found | {name: {each["label"]: each for each in found[name]} for name in ("candidates", "frontier")}

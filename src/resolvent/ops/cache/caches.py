"""Several caches as one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Self, final

from torch import Tensor

from resolvent.ops.cache.base import Cache, Change, check_tensor_names
from resolvent.patterns.strides import Integers


@final
class Caches(Cache, Mapping[str, Cache]):
    """Several caches by name: a layer with several patterns, a model with a cache for each layer. A mapping."""

    def __init__(self, children: dict[str, Cache]) -> None:
        batches = {name: child.batch for name, child in children.items()}
        if len(set(batches.values())) != 1:
            raise ValueError(f"expected caches of one batch size, got {batches or 'none'}.")
        check_tensor_names(children)
        self.children, self.batch = dict(children), next(iter(batches.values()))

    def __getitem__(self, name: str) -> Cache:
        return self.children[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.children)

    def __len__(self) -> int:
        return len(self.children)

    @property
    def tensors(self) -> dict[str, Tensor]:  # type: ignore[override]  # derived: to replace one, ask its child
        return {f"{name}/{own}": t for name, child in self.items() for own, t in child.tensors.items()}

    @property
    def positions(self) -> Integers:  # type: ignore[override]
        """Those of the first."""
        return next(iter(self.values())).positions

    @property
    def signature(self) -> object:
        return {name: child.signature for name, child in self.items()}

    def reserve(self, tokens: int) -> None:
        for child in self.values():
            child.reserve(tokens)

    def snapshot(self) -> None:
        for child in self.values():
            child.snapshot()

    def drop_snapshots(self) -> None:
        for child in self.values():
            child.drop_snapshots()

    def check_rewind(self, targets: list[int]) -> None:
        for name, child in self.items():
            try:
                child.check_rewind(targets)
            except ValueError as error:
                raise ValueError(f"cache {name!r}: {error}") from None

    def state_dict(self) -> dict[str, Tensor]:
        return {f"{name}/{key}": t for name, child in self.items() for key, t in child.state_dict().items()}

    def check_state(self, state: Mapping[str, Tensor]) -> None:
        if unknown := sorted({key.partition("/")[0] for key in state} - self.keys()):
            raise ValueError(f"expected a state of the caches {', '.join(self)}, got some of {', '.join(unknown)}.")
        for name, child in self.items():
            try:
                child.check_state(_part(state, name))
            except ValueError as error:
                raise ValueError(f"cache {name!r}: {error}") from None

    @property
    def content(self) -> str:
        kinds = Counter(child.content for child in self.values())
        return "; ".join(f"{count} × ({kind})" if count > 1 else kind for kind, count in kinds.items())

    def _changed(self, change: Change) -> Self:
        return type(self)({name: child._changed(change) for name, child in self.items()})

    def _rewind(self, targets: list[int]) -> None:
        for child in self.values():
            child._rewind(targets)

    def _load(self, state: Mapping[str, Tensor]) -> None:
        for name, child in self.items():
            child._load(_part(state, name))


def _part(state: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """The state of one of the caches."""
    return {key.removeprefix(f"{name}/"): t for key, t in state.items() if key.startswith(f"{name}/")}

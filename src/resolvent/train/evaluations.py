"""What models score on what they were not trained on: of answers, of a text, and of documents. No torch here."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import final

from resolvent.errors import SettingError, shortened
from resolvent.fields import (
    Amount,
    Count,
    Share,
    as_list,
    as_mapping,
    as_numbers,
    as_row,
    check_names,
    check_types,
    field_names,
)
from resolvent.tasks import EvaluatedOn

_BY = "by_"


@final
@dataclass(frozen=True)
class Slice:
    """A mean over the targets whose position, size, distance or hops are from `first` to `last`."""

    first: int
    last: int
    count: int
    value: float


@final
@dataclass(frozen=True)
class AccuracyEvaluation:
    """Shares of correct tokens and of sequences without an error; `slices` by size, hops, distance or position."""

    accuracy: Share
    sequence_accuracy: Share
    tokens: Count
    slices: Mapping[str, tuple[Slice, ...]] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        check_types(self)

    @property
    def value(self) -> float:
        return self.accuracy

    def __repr__(self) -> str:
        return f"AccuracyEvaluation({self})"

    def __str__(self) -> str:
        return f"accuracy {self.accuracy:.4f} per token, {self.sequence_accuracy:.4f} per sequence"

    def to_dict(self) -> dict[str, object]:
        plain = {name: getattr(self, name) for name in ("accuracy", "sequence_accuracy", "tokens")}
        return plain | {_BY + name: _rows(slices) for name, slices in self.slices.items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> AccuracyEvaluation:
        slices = {key.removeprefix(_BY): _slices(values[key], key) for key in values if key.startswith(_BY)}
        plain = {key: value for key, value in values.items() if not key.startswith(_BY)}
        check_names(plain, ("accuracy", "sequence_accuracy", "tokens"), "an evaluation", optional=())
        make: Callable[..., AccuracyEvaluation] = cls  # which checks its values
        return make(**plain, slices=slices)


@final
@dataclass(frozen=True)
class TextEvaluation:
    """Predictions of the text of a split, in contexts of one length; the loss is in nats per token.

    `rope` is the setting of rotary positions, where the model was measured with another one than it was trained with.
    """

    split: str
    stride: Count
    context: Count
    loss: float
    perplexity: float
    tokens: Count
    by_position: tuple[Slice, ...]
    bits_per_byte: float
    rope: str = ""

    def __post_init__(self) -> None:
        check_types(self)

    @property
    def value(self) -> float:
        return self.perplexity

    def __repr__(self) -> str:
        return f"TextEvaluation({self})"

    def __str__(self) -> str:
        return f"perplexity {self.perplexity:.2f}, {self.bits_per_byte:.3f} bits per byte on {self.split}"

    def to_dict(self) -> dict[str, object]:
        plain = {name: getattr(self, name) for name in field_names(type(self)) if name != "rope" or self.rope}
        return plain | {"by_position": _rows(self.by_position)}

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> TextEvaluation:
        check_names(values, field_names(cls), "an evaluation on text", optional=("rope",))
        by_position = _slices(values["by_position"], "by_position")
        make: Callable[..., TextEvaluation] = cls  # which checks its values
        return make(**{**values, "by_position": by_position})


@final
@dataclass(frozen=True)
class ReaderLoss:
    """What a reader whose predictions are known exactly scores on the same documents, in nats per token."""

    loss: float
    by_position: tuple[Slice, ...]

    def __post_init__(self) -> None:
        check_types(self)

    def to_dict(self) -> dict[str, object]:
        return {"loss": self.loss, "by_position": _rows(self.by_position)}

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> ReaderLoss:
        check_names(values, field_names(cls), "a reader", optional=())
        make: Callable[..., ReaderLoss] = cls  # which checks its values
        return make(**{**values, "by_position": _slices(values["by_position"], "by_position")})


@final
@dataclass(frozen=True)
class DocumentEvaluation:
    """Predictions of documents, beside those of `readers` on the very same ones; losses are in nats per token.

    floor         the reader that no model can be better than, in expectation
    excess_error  standard error, over documents, of the loss in excess of that reader's
    hop_spectrum  the share of the last layer's T that was fed back 0, 1, … times, mean over heads and tokens of the
                  first documents; the last entry has all the rest. Empty if it was not measured
    """

    loss: float
    perplexity: float
    tokens: Count
    documents: Count
    floor: str
    excess_error: Amount
    by_position: tuple[Slice, ...]
    readers: Mapping[str, ReaderLoss]
    hop_spectrum: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        check_types(self)
        if self.floor not in self.readers:
            raise SettingError(f"expected the floor among the readers {', '.join(self.readers)}, got '{self.floor}'.")
        if not all(map(math.isfinite, self.hop_spectrum)):
            raise SettingError(f"expected finite shares in hop_spectrum, got {shortened(self.hop_spectrum)}.")

    @property
    def value(self) -> float:
        return self.perplexity

    @property
    def excess(self) -> float:
        """The loss in excess of the floor's."""
        return self.loss - self.readers[self.floor].loss

    def __repr__(self) -> str:
        return f"DocumentEvaluation({self})"

    def __str__(self) -> str:
        floor = self.readers[self.floor].loss
        return f"loss {self.loss:.4f} (floor {floor:.4f}), perplexity {self.perplexity:.3f}"

    def to_dict(self) -> dict[str, object]:
        plain = {name: getattr(self, name) for name in field_names(type(self))}
        readers = {name: reader.to_dict() for name, reader in self.readers.items()}
        return plain | {"by_position": _rows(self.by_position), "readers": readers}

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> DocumentEvaluation:
        check_names(values, field_names(cls), "an evaluation on documents", optional=("hop_spectrum",))
        readers = {
            name: ReaderLoss.from_dict(as_mapping(each, f"the reader '{name}'"))
            for name, each in as_mapping(values["readers"], "readers").items()
        }
        spectrum = as_list(values.get("hop_spectrum", ()), "hop_spectrum")
        made = {
            "by_position": _slices(values["by_position"], "by_position"),
            "readers": readers,
            "hop_spectrum": tuple(as_numbers(spectrum, "hop_spectrum", len(spectrum))),
        }
        make: Callable[..., DocumentEvaluation] = cls  # which checks its values
        return make(**{**values, **made})


Evaluation = AccuracyEvaluation | TextEvaluation | DocumentEvaluation
EVALUATIONS: dict[EvaluatedOn, type[AccuracyEvaluation] | type[TextEvaluation] | type[DocumentEvaluation]] = {
    "answers": AccuracyEvaluation,
    "text": TextEvaluation,
    "documents": DocumentEvaluation,
}


def _rows(slices: Sequence[Slice]) -> list[tuple[float, ...]]:
    return [(each.first, each.last, each.count, each.value) for each in slices]


def _slices(values: object, name: str) -> tuple[Slice, ...]:
    rows = [as_row(row, f"a row of {name}", 3, 4) for row in as_list(values, name)]
    return tuple(Slice(int(first), int(last), int(count), value) for first, last, count, value in rows)

"""Text as something to learn: a prepared corpus, cut into contexts."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

from resolvent.patterns.errors import closest
from resolvent.tasks import Batch
from resolvent.text import Corpus, TextBatches, TextError, Windows

TRAIN, HELD_OUT = "train", "validation"


@final
@dataclass(frozen=True)
class Text:
    """The corpus in a folder. All that is random about a batch follows from (seed, index).

    What says which corpus it is is found when left out, and checked when given; sha256 is of the tokens that are
    trained on and of those that are held out.
    """

    corpus: str
    context: int = 256
    tokenizer: str = ""
    vocab_size: int = 0
    sha256: str = ""
    opened: Corpus = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        opened = Corpus.open(self.corpus)
        parts = "".join(str(opened.about["splits"][split]["sha256"]) for split in (TRAIN, HELD_OUT))
        found = {"tokenizer": opened.tokenizer, "vocab_size": opened.vocab_size,
                 "sha256": hashlib.sha256(parts.encode()).hexdigest()}  # fmt: skip
        for name, value in found.items():
            if (given := getattr(self, name)) and given != value:
                raise TextError(
                    f"{self.corpus} is not the corpus of this run: expected {name} {_short(given)}, got "
                    f"{_short(value)}. Prepare that one again, or begin another run."
                )
            object.__setattr__(self, name, value)
        object.__setattr__(self, "opened", opened)

    def batch(self, seed: int, index: int, count: int, *, divisor: int = 1) -> Batch:
        """Batch number `index` for training; with a `divisor`, of contexts so many times as short."""
        return TextBatches(self.opened.split(TRAIN), max(self.context // divisor, 1), count, seed).make(index)

    def windows(self, batch: int, split: str = HELD_OUT, stride: int | None = None) -> Windows:
        """A split in order, for evaluation."""
        return Windows(self.opened.split(split), self.context, batch, stride)

    def settings(self) -> dict[str, Any]:
        own = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.init}
        return {"name": "text", **own}


def text(settings: Mapping[str, Any]) -> Text:
    """To train on, from plain values; an unknown name is refused, with the nearest one."""
    known = [f.name for f in dataclasses.fields(Text) if f.init]
    for name in settings:
        if name not in known:
            raise TextError(f"unknown setting '{name}' of text: expected {', '.join(known)}.{closest(name, known)}")
    made = Text(**settings)
    TextBatches(made.opened.split(TRAIN), made.context, 1)  # or a refusal, before anything is trained
    made.opened.split(HELD_OUT)
    return made


def _short(value: object) -> str:
    return f"{value[:16]}…" if isinstance(value, str) and len(value) > 20 else str(value)

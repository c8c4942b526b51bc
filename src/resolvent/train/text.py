"""Text as something to learn: a prepared corpus, cut into contexts."""

from __future__ import annotations

import dataclasses
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

    sha256       of the tokens that are trained on; found when it is empty, checked when it is given
    """

    corpus: str
    context: int = 256
    tokenizer: str = ""
    vocab_size: int = 0
    sha256: str = ""
    opened: Corpus = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        opened = Corpus.open(self.corpus)
        found = str(opened.about["splits"][TRAIN]["sha256"])
        if self.sha256 not in ("", found):
            raise TextError(
                f"{self.corpus} is not the corpus of this run: expected tokens with sha256 {self.sha256[:16]}…, "
                f"got {found[:16]}…. Prepare that one again, or begin another run."
            )
        object.__setattr__(self, "opened", opened)
        object.__setattr__(self, "sha256", found)
        object.__setattr__(self, "tokenizer", opened.tokenizer)
        object.__setattr__(self, "vocab_size", opened.vocab_size)
        TextBatches(opened.split(TRAIN), self.context, 1)  # or a refusal, before anything is trained
        opened.split(HELD_OUT)

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
    """From plain values; an unknown name is refused, with the nearest one."""
    known = [f.name for f in dataclasses.fields(Text) if f.init]
    for name in settings:
        if name not in known:
            raise TextError(f"unknown setting '{name}' of text: expected {', '.join(known)}.{closest(name, known)}")
    return Text(**settings)

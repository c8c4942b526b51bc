"""Text: predict the next token of a prepared corpus, cut into contexts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Self, final

from resolvent.batch import Batch
from resolvent.tasks.task import Task, TaskError
from resolvent.text import TOKENIZERS, Corpus, FileTokenizer, LastTargets, TextBatches, TextError, Windows

TRAIN, HELD_OUT = "train", "validation"


@final
@dataclass(frozen=True)
class Text(Task):
    """The corpus in a folder.

        tokens    T h e   c a t   s a t
        targets   h e   c a t   s a t .

    Making one touches no file: the corpus is opened once, by `prepared` or when its tokens are first asked for.
    `tokenizer`, `vocab_size` and `sha256` (of the tokens trained on and of those held out) say which corpus it is:
    `prepared` fills in those left out, and all that are given are checked when the corpus is opened.
    """

    name = "text"
    measure = "perplexity"
    evaluated_on = "text"

    corpus: str
    context: int = 256
    tokenizer: str = ""
    sha256: str = ""
    vocab_size: int = field(default=0, kw_only=True)

    @cached_property
    def opened(self) -> Corpus:
        """The corpus on disk, which must be the one that the settings name."""
        corpus = Corpus.open(self.corpus)
        self._check(corpus)
        return corpus

    @property
    def longest(self) -> int:
        return self.context

    def prepared(self) -> Self:
        corpus = self.opened
        TextBatches(corpus.split(TRAIN), self.context, 1)  # raises an error if there is less than one context
        corpus.split(HELD_OUT)
        return self.changed(_identity(corpus))

    def changed(self, settings: Mapping[str, object]) -> Self:
        """With other settings; the corpus stays open if it is the same one."""
        text = super().changed(settings)
        if "opened" in vars(self) and text.corpus == self.corpus:
            text._check(self.opened)
            object.__setattr__(text, "opened", self.opened)
        return text

    def batch(self, seed: int, index: int, count: int, *, divisor: int = 1) -> Batch:
        return TextBatches(self.opened.split(TRAIN), max(self.context // divisor, 1), count, seed).make(index)

    def held_out(self, seed: int, count: int, batches: int | None = None) -> Iterator[Batch]:  # noqa: ARG002
        """The validation split in order, whatever the seed."""
        return islice(iter(self.windows(count)), batches)

    def windows(self, batch: int, split: str = HELD_OUT, stride: int | None = None) -> Windows:
        """A split in order, for evaluation."""
        return Windows(self.opened.split(split), self.context, batch, stride)

    def last_targets(self, context: int, batch: int, scored: int) -> LastTargets:
        """Held-out text in windows of another length, up to this one's, that end at the same targets."""
        return LastTargets(self.opened.split(HELD_OUT), context, self.context, batch, scored=scored)

    def save_files(self, folder: Path) -> None:
        """A tokenizer that came in a file."""
        tokenizer = self.opened.load_tokenizer() if self.tokenizer not in TOKENIZERS else None
        if isinstance(tokenizer, FileTokenizer):
            tokenizer.save(folder)

    def epochs(self, tokens: int) -> float:
        return tokens / self.opened.counts[TRAIN].tokens

    def _check(self, corpus: Corpus) -> None:
        for name, value in _identity(corpus).items():
            if (expected := getattr(self, name)) and expected != value:
                raise TextError(
                    f"{self.corpus} is not the corpus of this run: expected {name} {_short(expected)}, got "
                    f"{_short(value)}. Prepare that one again, or begin another run."
                )


def require_text(task: Task) -> Text:
    """The task, which must be text."""
    if not isinstance(task, Text):
        raise TaskError(f"expected a run on text, got one on '{task.name}'.")
    return task


def _identity(corpus: Corpus) -> dict[str, object]:
    digests = "".join(corpus.info.splits[split].sha256 for split in (TRAIN, HELD_OUT))
    sha256 = hashlib.sha256(digests.encode()).hexdigest()
    return {"tokenizer": corpus.tokenizer, "vocab_size": corpus.vocab_size, "sha256": sha256}


def _short(value: object) -> str:
    return f"{value[:16]}…" if isinstance(value, str) and len(value) > 20 else str(value)

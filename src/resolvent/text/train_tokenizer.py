"""Train a tokenizer on a text: byte-level BPE, as GPT-2's is, in a `tokenizer.json` that other libraries read, too.

It sees the documents that `prepare` would train a model on, and not those held out. Every text round-trips: the 256
bytes are tokens, `<|endoftext|>` is the first one, and the rest are merges. The same texts give the same file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from resolvent.files import write_text
from resolvent.text.corpus import SIDECAR
from resolvent.text.files import TextError
from resolvent.text.reading import ReadOptions, pieces
from resolvent.text.request import OnProgress, TextRequest, TextSources, fraction_done
from resolvent.text.tokenizer import END_OF_TEXT
from resolvent.text.tokenizer_file import MOST_TOKENS, FileTokenizer

if TYPE_CHECKING:
    from resolvent.text.sources import Source

LEAST_TOKENS = 257  # the bytes, and the end of a text
_LONGEST = 64  # bytes of a token: a run of dashes, or of another script, does not fill the vocabulary


def train_tokenizer(
    sources: TextSources,
    out: str | Path,
    vocab_size: int = 4096,
    *,
    field: str = "text",
    errors: str = "strict",
    held_out: float | None = None,
    on_progress: OnProgress = lambda *_: None,
) -> FileTokenizer:
    """Train a byte-level BPE of at most so many tokens on texts, and write it to the file `out`.

    Args:
        sources: What `prepare` takes: the name of a corpus, or files and folders.
        out: The file, `tokenizer.json` as a rule.
        vocab_size: Tokens in all. A short text may not have as many pairs to merge.
        field: As in `prepare`, like the two that follow: what it holds out is not seen.
        errors: "strict" or "replace".
        held_out: The share of validation, and of test.
        on_progress: Called with the current stage and the fraction of it that is done.
    """
    check_size(vocab_size)
    texts = TextRequest.parse(sources, ReadOptions(field, errors), held_out)
    for path in texts.paths:
        if (path / SIDECAR).exists():
            raise TextError(f"{path} is tokenized already: expected the texts that it was prepared from.")
    return train_on(texts, texts.sources(), Path(out), vocab_size, on_progress)


def check_size(vocab_size: int) -> None:
    if not LEAST_TOKENS <= vocab_size <= MOST_TOKENS:
        raise TextError(
            f"expected a vocabulary of {LEAST_TOKENS:,} (the 256 bytes and an end of text) to {MOST_TOKENS:,} tokens, "
            f"got {vocab_size:,}."
        )


def train_on(
    texts: TextRequest, files: Sequence[Source], out: Path, vocab_size: int, on_progress: OnProgress
) -> FileTokenizer:
    """Train on texts that were asked for, which these files hold."""
    surveyed, _ = texts.survey(files, on_progress)
    training = _training_texts(surveyed, texts.options, on_progress)
    content = _train(training, vocab_size, lambda: on_progress("merging", 0.0))
    write_text(out, content)
    return FileTokenizer(out)


def _training_texts(sources: Sequence[Source], options: ReadOptions, on_progress: OnProgress) -> Iterator[str]:
    done = fraction_done(sources)
    for index, source in enumerate(sources):
        for piece in pieces(source, options):
            if piece.split == "train":
                yield piece.text
            on_progress("counting words", done(index, piece.end))


def _train(texts: Iterator[str], vocab_size: int, on_counted: Callable[[], None]) -> str:
    try:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    except ImportError as error:
        raise ImportError("training a tokenizer needs the library tokenizers: pip install tokenizers.") from error
    library = Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=[END_OF_TEXT], initial_alphabet=alphabet,
                                  max_token_length=_LONGEST, show_progress=False)  # fmt: skip
    library.train_from_iterator(_counted(texts, on_counted), trainer)
    content: str = library.to_str(pretty=True)
    return content + "\n"


def _counted(texts: Iterator[str], on_counted: Callable[[], None]) -> Iterator[str]:
    """The texts; says when the last has been handed over, and there is at least one."""
    empty = True
    for text in texts:
        empty = False
        yield text
    if empty:
        raise TextError("nothing to train on: expected text, got none. Add documents, or use a smaller --held-out.")
    on_counted()

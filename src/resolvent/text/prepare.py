"""Texts to tokens on disk, in one pass that can be killed at any moment and goes on.

The work is done in a folder beside `out`, named like it with `.partial`, and moved there when it is complete: `out` is
whole or not there. In it, `plan.json` says what was asked and what the sources are; tokens are appended to files, which
reach the disk before `progress.json` says how long they are known to be good. Whoever comes next cuts them to that
length, checks them, and reads on from the same place. Nothing in the result depends on when or how often that happened.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, final

from resolvent.files import locked, settle
from resolvent.patterns.errors import closest
from resolvent.text.bins import Bins, State
from resolvent.text.corpora import CORPORA, DOCUMENTS, HUB, hub_revision
from resolvent.text.corpus import FORMAT, PARTIAL, SIDECAR, VERSION, Corpus
from resolvent.text.fetch import fetch
from resolvent.text.files import TextError, write_json
from resolvent.text.reading import Options, pieces
from resolvent.text.sources import SPLITS, Source, find, survey, unchanged
from resolvent.text.tokenizer import kind_of, tokenizer

EVERY = 2.0  # seconds of work that a kill may cost
_PLAN, _PROGRESS = "plan.json", "progress.json"
Show = Callable[[str, float], None]  # what is going on, and how much of it is done, from 0 to 1
Say = Callable[[str], None]


def prepare(
    sources: str | Path | Sequence[str | Path],
    out: str | Path,
    tokenizer: str = "gpt2",
    *,
    field: str = "text",
    errors: str = "strict",
    held_out: float | None = None,
    show: Show = lambda *_: None,
    say: Say = lambda _: None,
) -> Corpus:
    """The corpus in `out`, made of a corpus that has a name (`wikitext2`, …) or of files and folders.

    What a document is and which split it falls to: see `resolvent.text.sources`; `held_out` is the share of validation,
    and of test. `field` has the text of jsonl and parquet records. `errors`: "strict" refuses text that is no UTF-8,
    "replace" puts U+FFFD there and counts them. Killed, the same call goes on; finished, it only opens the corpus.
    """
    out = Path(out)
    if out.is_symlink() or not out.name.strip("."):
        out = out.resolve()
    given = [sources] if isinstance(sources, str | Path) else list(sources)
    request = _Request.read(given, tokenizer, field, errors, held_out)
    if (out / SIDECAR).exists():
        return _finished(out, request)
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise TextError(f"{out} holds something else: expected a folder that is new or empty. Choose another --out.")
    found = request.sources()
    partial = out.with_name(out.name + PARTIAL)
    partial.mkdir(parents=True, exist_ok=True)
    with locked(partial):
        if (out / SIDECAR).exists():  # by another process, meanwhile
            return _finished(out, request)
        plan = _plan(partial, request, found, show, say)
        if not (partial / SIDECAR).exists():
            planned = [source.with_facts(facts) for source, facts in zip(found, plan["sources"], strict=True)]
            _work(partial, request, planned, plan, show, say)
        for name in (_PLAN, _PROGRESS):
            (partial / name).unlink(missing_ok=True)
        settle(partial)
        partial.replace(out)
    settle(out.parent)
    return Corpus.open(out)


@final
@dataclass(frozen=True)
class _Request:
    """What was asked for. Two requests with the same settings and sources give the same corpus, bit by bit."""

    corpus: str | None
    paths: tuple[Path, ...]
    tokenizer: str
    options: Options

    @classmethod
    def read(
        cls, sources: Sequence[str | Path], tokenizer: str, field: str, errors: str, held_out: float | None
    ) -> _Request:
        kind_of(tokenizer)
        if errors not in ("strict", "replace"):
            raise TextError(f"expected errors to be strict or replace, got '{errors}'.")
        named = [str(source) for source in sources if source in (*CORPORA, *HUB)]
        if named and len(sources) > 1:
            raise TextError(f"{named[0]} is prepared alone: expected its name only, or files and folders only.")
        share = held_out if held_out is not None else 0.0005 if named and named[0] in HUB else 0.05
        if not 0 <= share < 0.5:
            raise TextError(f"expected a share of 0 ≤ held_out < 0.5 for validation, and for test, got {share}.")
        if not sources:
            raise TextError(f"nothing to prepare: expected {', '.join([*CORPORA, *HUB])}, or files and folders.")
        for source in sources:
            if not named and not Path(source).exists():
                names = [*CORPORA, *HUB]
                raise TextError(f"there is no file or folder {source}, and no corpus of that name: expected "
                                f"{', '.join(names)} or a path.{closest(str(source), names)}")  # fmt: skip
        paths = () if named else tuple(map(Path, sources))
        return cls(named[0] if named else None, paths, tokenizer, Options(field, errors, share))

    def settings(self) -> dict[str, Any]:
        package = CORPORA[self.corpus].requirement if self.corpus in CORPORA else None
        tokens = f"{self.tokenizer}:{kind_of(self.tokenizer).hash}"
        own = {"corpus": self.corpus, "package": package, "tokenizer": tokens}
        return own | asdict(self.options)

    def sources(self) -> list[Source]:
        """The files, which are fetched first where the corpus has a name."""
        if self.corpus in HUB:
            name = HUB[self.corpus]
            return [Source(name, Path(), "hub", 0, 0.0, sha256=hub_revision(name))]
        if self.corpus is not None:
            return find([fetch(CORPORA[self.corpus], f"corpora/{self.corpus}")])
        return find(self.paths)

    def differs(self, about: dict[str, Any]) -> str | None:
        """In what a plan or corpus is not what was asked for."""
        asked, settings = self.settings(), about["settings"]
        other = [f"{key} {str(settings.get(key))[:16]}, not {str(asked[key])[:16]}"
                 for key in asked if settings.get(key) != asked[key]]  # fmt: skip
        return f"was prepared otherwise: {'; '.join(other)}" if other else None

    def is_stale(self, about: dict[str, Any], date: float, found: Sequence[Source], show: Show) -> str | None:
        """Whether the texts have changed since that date; where that cannot be excluded, they are read again."""
        if unchanged(found, about["sources"], date):
            return None
        same = [s.facts() for s in _surveyed(found, self.options, show)[0]] == about["sources"]
        return None if same else "was prepared from other texts"


def _finished(out: Path, request: _Request) -> Corpus:
    """A corpus that is there already, if it is what was asked for; those with a name are not fetched again."""
    corpus, date = Corpus.open(out), (out / SIDECAR).stat().st_mtime
    wrong = request.differs(corpus.about)
    if wrong is None and request.corpus is None:
        wrong = request.is_stale(corpus.about, date, request.sources(), lambda *_: None)
    if wrong is not None:
        raise TextError(f"{out} {wrong}. Choose another --out, or delete the folder to prepare it again.")
    return corpus


def _plan(partial: Path, request: _Request, found: Sequence[Source], show: Show, say: Say) -> dict[str, Any]:
    """What is to be done, as an earlier process left it if that still fits. Otherwise all begins again."""
    for name in (SIDECAR, _PLAN):
        known = _read(partial / name, {"settings", "sources", "rule"})
        if known is not None:
            date = (partial / name).stat().st_mtime
            wrong = request.differs(known) or request.is_stale(known, date, found, show)
            if wrong is None:
                return known
            say(f"{partial} {wrong}: beginning again.")
            break
        (partial / name).unlink(missing_ok=True)
    for name in (SIDECAR, _PROGRESS, _PLAN):
        (partial / name).unlink(missing_ok=True)
    date = time.time()
    surveyed, rule = _surveyed(found, request.options, show)
    facts = [source.facts() for source in surveyed]
    plan = {"version": VERSION, "settings": request.settings(), "rule": rule, "sources": facts}
    write_json(partial / _PLAN, plan, date)
    return plan


def _surveyed(found: Sequence[Source], options: Options, show: Show) -> tuple[list[Source], str]:
    done, total = 0, sum(source.stored for source in found)

    def count(more: int) -> None:
        nonlocal done
        done += more
        show("reading the texts", done / total if total else 1.0)

    return survey(found, options.held_out, count)


def _work(
    partial: Path, request: _Request, sources: Sequence[Source], plan: dict[str, Any], show: Show, say: Say
) -> None:
    """Everything up to a complete folder, from wherever it was left."""
    encoder = tokenizer(request.tokenizer)
    bins, begin, at, replaced = _where_it_stood(partial, encoder.end_of_text, say)
    saved, share = time.monotonic(), _shares(sources)

    def save() -> None:
        place = {"version": VERSION, "source": i, "at": at, "replaced": replaced}
        write_json(partial / _PROGRESS, place | {"splits": bins.flush()})

    with bins:
        for i in range(begin, len(sources)):
            for piece in pieces(sources[i], at, request.options):
                bins.add(piece, encoder.encode(piece.text))
                at, replaced = piece.at, replaced + piece.replaced
                show("tokens", share(i, at))
                if time.monotonic() - saved >= EVERY:
                    save()
                    saved = time.monotonic()
            at = 0
        splits = bins.finish()
    if not splits["train"]["tokens"]:
        shutil.rmtree(partial)
        count = sum(split["documents"] for split in splits.values())
        raise TextError(
            f"nothing to train on: expected text, got {count} documents, none of them for training. Give more of them, "
            "or a smaller --held-out."
        )
    kind = kind_of(request.tokenizer)
    told = {"name": kind.name, "hash": kind.hash, "vocab_size": kind.vocab_size, "end_of_text": kind.end_of_text}
    about = {"format": FORMAT, **plan, "tokenizer": told}
    date = (partial / _PLAN).stat().st_mtime  # texts that change later are other texts
    write_json(partial / SIDECAR, about | {"replaced": replaced, "splits": splits}, date)


def _where_it_stood(partial: Path, end_of_text: int, say: Say) -> tuple[Bins, int, int, int]:
    """The files, the source and the place in it, and what was replaced so far."""
    known = _read(partial / _PROGRESS, {"source", "at", "replaced", "splits"})
    if known is not None:
        state: State = known["splits"]
        try:
            bins = Bins(partial, end_of_text, state)
        except TextError as error:
            say(f"{error}: beginning again.")
        else:
            tokens = sum(state[split]["tokens"] for split in SPLITS)
            say(f"going on after {tokens:,} tokens.")
            return bins, known["source"], known["at"], known["replaced"]
    return Bins(partial, end_of_text), 0, 0, 0


def _read(path: Path, keys: set[str]) -> dict[str, Any] | None:
    """What an earlier process left; None if it is not there or not whole, and then the work begins again."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    whole = isinstance(content, dict) and content.get("version") == VERSION and content.keys() >= keys
    return content if whole else None


def _shares(sources: Sequence[Source]) -> Callable[[int, int], float]:
    """How much of all texts is done at a place of a source, by bytes."""
    before = [0, *accumulate(source.bytes for source in sources)]

    def share(i: int, at: int) -> float:
        source = sources[i]
        if source.kind == "hub":
            return min(1.0, at / DOCUMENTS[source.name])
        return (before[i] + (source.bytes * at / source.rows if source.kind == "parquet" else at)) / before[-1]

    return share

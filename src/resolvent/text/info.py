"""The contents of `corpus.json`, `plan.json` and `progress.json` as frozen values, with checked readers.

Reading raises a `TextError` that names the field which is missing or has the wrong type.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Self, TypeVar, final

from resolvent import untrusted
from resolvent.errors import shortened
from resolvent.fields import LARGEST
from resolvent.text.files import TextError

FORMAT, VERSION = "resolvent-corpus", 1
SPLITS = ("train", "validation", "test")
SPLIT_RULES = {
    "kept": "splits as in the source",
    "tail": "held out: the end of each text",
    "files": "held out: files, by their hash",
    "names": "held out: files, by the hash of their names",
    "documents": "held out: documents, by their hash",
}
_T = TypeVar("_T")
_EXPECTED = {str: "a string", int: "an integer", float: "a number", dict: "an object", list: "a list"}


@final
class JsonObject:
    """A JSON object whose fields are type-checked as they are read."""

    def __init__(self, content: object, path: str = "") -> None:
        if not isinstance(content, dict):
            raise TextError(f"expected an object{f' for {path}' if path else ''}, got {_describe(content)}.")
        self._content: Mapping[str, object] = content
        self._path = path

    def string(self, key: str) -> str:
        return self._get(key, str)

    def optional_string(self, key: str) -> str | None:
        return None if self._content.get(key) is None else self.string(key)

    def integer(self, key: str) -> int:
        value = self._get(key, int)
        if not 0 <= value <= LARGEST:
            raise TextError(f"expected an integer from 0 to 2**62 for {self._name(key)}, got {shortened(value)}.")
        return value

    def number(self, key: str) -> float:
        value = self.integer(key) if isinstance(self._content.get(key), int) else self._get(key, float)
        if not math.isfinite(value):
            raise TextError(f"expected a finite number for {self._name(key)}, got {value}.")
        return value

    def array(self, key: str) -> list[object]:
        return self._get(key, list)

    def child(self, key: str) -> JsonObject:
        return JsonObject(self._content.get(key), self._name(key))

    def children(self, key: str) -> list[JsonObject]:
        return [JsonObject(item, f"{self._name(key)}[{i}]") for i, item in enumerate(self.array(key))]

    def integers(self, key: str) -> list[int]:
        items = self.array(key)
        integers = [item for item in items if isinstance(item, int) and not isinstance(item, bool)]
        if len(integers) != len(items):
            raise TextError(f"expected a list of integers for {self._name(key)}, got {shortened(items)}.")
        return integers

    def has(self, key: str) -> bool:
        """Whether the field is present and not null."""
        return self._content.get(key) is not None

    def keys(self) -> set[str]:
        return set(self._content)

    def _get(self, key: str, kind: type[_T]) -> _T:
        value = self._content.get(key)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise TextError(f"expected {_EXPECTED[kind]} for {self._name(key)}, got {_describe(value)}.")
        return value

    def _name(self, key: str) -> str:
        return f"{self._path}.{key}" if self._path else key


def _describe(value: object) -> str:
    return "nothing" if value is None else type(value).__name__


@final
@dataclass(frozen=True)
class PrepareSettings:
    """What was asked for. `package` is the requirement that a named corpus comes from, if any; `trained`, the
    vocabulary of a tokenizer that was trained on these texts.
    """

    corpus: str | None
    package: str | None
    tokenizer: str  # name:hash
    field: str
    errors: str
    held_out: float
    trained: int | None = None

    @classmethod
    def read(cls, content: JsonObject) -> Self:
        return cls(
            corpus=content.optional_string("corpus"),
            package=content.optional_string("package"),
            tokenizer=content.string("tokenizer"),
            field=content.string("field"),
            errors=content.string("errors"),
            held_out=content.number("held_out"),
            trained=content.integer("trained") if content.has("trained") else None,
        )

    def to_dict(self) -> dict[str, object]:
        """Without `trained` where nothing was, as releases wrote it that could not train."""
        return {name: value for name, value in asdict(self).items() if name != "trained" or value is not None}


@final
@dataclass(frozen=True)
class SourceInfo:
    """What is recorded of a source file: everything except its path and modification time."""

    name: str
    kind: str
    stored: int
    bytes: int
    rows: int
    sha256: str
    split: str | None
    cuts: tuple[int, int] | None

    @classmethod
    def read(cls, content: JsonObject) -> Self:
        cuts = content.integers("cuts") if content.has("cuts") else None
        if cuts is not None and len(cuts) != 2:
            raise TextError(f"expected two integers for cuts, got {len(cuts)}.")
        return cls(
            name=content.string("name"),
            kind=content.string("kind"),
            stored=content.integer("stored"),
            bytes=content.integer("bytes"),
            rows=content.integer("rows"),
            sha256=content.string("sha256"),
            split=content.optional_string("split"),
            cuts=None if cuts is None else (cuts[0], cuts[1]),
        )


@final
@dataclass(frozen=True)
class TokenizerInfo:
    """The tokenizer of a corpus; `hash` identifies its vocabulary."""

    name: str
    hash: str
    vocab_size: int
    end_of_text: int

    @classmethod
    def read(cls, content: JsonObject) -> Self:
        return cls(
            name=content.string("name"),
            hash=content.string("hash"),
            vocab_size=content.integer("vocab_size"),
            end_of_text=content.integer("end_of_text"),
        )


@final
@dataclass(frozen=True)
class SplitCounts:
    """Sizes of a split. `bytes` and `lines` (line ends) are of its text, without the tokens between documents."""

    tokens: int = 0
    documents: int = 0
    bytes: int = 0
    lines: int = 0

    @classmethod
    def read(cls, content: JsonObject) -> Self:
        return cls(**{field.name: content.integer(field.name) for field in fields(cls)})


@final
@dataclass(frozen=True)
class SplitInfo:
    """The token file of a split, its sizes and its hash."""

    file: str
    counts: SplitCounts
    sha256: str

    @classmethod
    def read(cls, content: JsonObject) -> Self:
        return cls(content.string("file"), SplitCounts.read(content), content.string("sha256"))

    def to_dict(self) -> dict[str, object]:
        return {"file": self.file, **asdict(self.counts), "sha256": self.sha256}


@final
@dataclass(frozen=True)
class PreparePlan:
    """What `prepare` is to do: the settings, the sources, and the rule that assigns their documents to splits."""

    settings: PrepareSettings
    rule: str
    sources: tuple[SourceInfo, ...]

    @classmethod
    def read(cls, content: JsonObject) -> Self:
        require_version(content)
        rule = content.string("rule")
        if rule not in SPLIT_RULES:
            raise TextError(f"expected rule {', '.join(SPLIT_RULES)}, got '{rule}'.")
        settings = PrepareSettings.read(content.child("settings"))
        return cls(settings, rule, tuple(SourceInfo.read(source) for source in content.children("sources")))

    def to_dict(self) -> dict[str, object]:
        return {"version": VERSION, **asdict(self), "settings": self.settings.to_dict()}


@final
@dataclass(frozen=True)
class CorpusInfo:
    """The content of `corpus.json`: how the corpus was prepared, and what its files hold."""

    plan: PreparePlan
    tokenizer: TokenizerInfo
    replaced: int  # characters that were not valid UTF-8
    splits: dict[str, SplitInfo]

    @classmethod
    def read(cls, content: JsonObject) -> Self:
        plan = PreparePlan.read(content)
        splits = content.child("splits")
        if splits.keys() != set(SPLITS):
            raise TextError(f"expected splits {', '.join(SPLITS)}, got {', '.join(splits.keys()) or 'none'}.")
        return cls(
            plan=plan,
            tokenizer=TokenizerInfo.read(content.child("tokenizer")),
            replaced=content.integer("replaced"),
            splits={name: SplitInfo.read(splits.child(name)) for name in SPLITS},
        )

    def to_dict(self) -> dict[str, object]:
        return {
            "format": FORMAT,
            **self.plan.to_dict(),
            "tokenizer": asdict(self.tokenizer),
            "replaced": self.replaced,
            "splits": {name: split.to_dict() for name, split in self.splits.items()},
        }


@final
@dataclass
class SplitState:
    """The token file of a split while it is written: its sizes so far, and `crc`, a checksum of the file so far."""

    tokens: int = 0
    documents: int = 0
    bytes: int = 0
    lines: int = 0
    crc: int = 0

    @classmethod
    def read(cls, content: JsonObject) -> Self:
        return cls(**{field.name: content.integer(field.name) for field in fields(cls)})

    @property
    def counts(self) -> SplitCounts:
        return SplitCounts(self.tokens, self.documents, self.bytes, self.lines)


@final
@dataclass(frozen=True)
class PrepareProgress:
    """How far `prepare` has come: the sources that are done, and the state of the token files after them."""

    sources: int
    replaced: int
    splits: dict[str, SplitState]

    @classmethod
    def read(cls, content: JsonObject) -> Self:
        require_version(content)
        splits = content.child("splits")
        return cls(
            sources=content.integer("sources"),
            replaced=content.integer("replaced"),
            splits={name: SplitState.read(splits.child(name)) for name in SPLITS},
        )

    def to_dict(self) -> dict[str, object]:
        return {
            "version": VERSION,
            "sources": self.sources,
            "replaced": self.replaced,
            "splits": {name: asdict(state) for name, state in self.splits.items()},
        }


def read_if_sound(path: Path, parse: Callable[[JsonObject], _T]) -> _T | None:
    """What an earlier process wrote; None if the file is missing or damaged, and then the work starts over."""
    try:
        return parse(JsonObject(untrusted.read(path)))
    except (OSError, ValueError):  # a TextError is a ValueError
        return None


def require_version(content: JsonObject) -> None:
    if content.integer("version") != VERSION:
        raise TextError(f"expected version {VERSION}, got {content.integer('version')}.")

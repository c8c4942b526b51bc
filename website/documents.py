"""Documents of the repository as pages of the site: which page a file is, and links that fit it."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
DOCUMENTS = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}  # of the repository, and the pages they are
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#:]+)(#[^)\s]*)?\)")


def as_on_site(markdown: str, folder: str, page: str) -> str:
    """Links of a document in a folder of the repository, as they are on a page; to files without a page, their text."""

    def replaced(match: re.Match[str]) -> str:
        image, text, target, anchor = match.groups(default="")
        made = _page_of(posixpath.normpath(posixpath.join(folder, target)))
        if made is None:
            return text
        return f"{image}[{text}]({posixpath.relpath(made, posixpath.dirname(page) or '.')}{anchor})"

    return _LINK.sub(replaced, markdown)


def _page_of(file: str) -> str | None:
    """Where a file of the repository is on the site; None if it is not."""
    if file in DOCUMENTS:
        return DOCUMENTS[file]
    if file.startswith("docs/") and (ROOT / file).is_file():
        return file.removeprefix("docs/")
    if file.startswith("examples/") and file.endswith(".py"):
        return file.removesuffix(".py") + ".md"
    return None

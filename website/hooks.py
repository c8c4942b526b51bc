"""What mkdocs asks for while it builds: pages made from other files of the repository, and links that fit the site."""

from __future__ import annotations

import posixpath
import re
import tempfile
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from website import cells, commands

ROOT = Path(__file__).parent.parent
DOCUMENTS = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}  # of the repository, and the pages they are
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#:]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add documents of the root, the reference of commands, and the examples, which are run."""
    for document, name in DOCUMENTS.items():
        text = as_on_site((ROOT / document).read_text(encoding="utf-8"), ".", name)
        files.append(File.generated(config, name, content=text))
    files.append(File.generated(config, "reference/commands.md", content=commands.page()))
    with tempfile.TemporaryDirectory() as folder:
        for script in sorted((ROOT / "examples").glob("*.py")):
            content = cells.page(script, Path(folder))
            files.append(File.generated(config, f"examples/{script.stem}.md", content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Links out of `docs/` lead to the page that the file has on the site."""
    name = page.file.src_uri
    return (
        markdown
        if page.file.generated_by
        else as_on_site(markdown, posixpath.join("docs", posixpath.dirname(name)), name)
    )


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

"""What mkdocs asks for while it builds: pages made from other files of the repository, and links that fit the site."""

from __future__ import annotations

import posixpath
import tempfile
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from website import cells, commands
from website.documents import DOCUMENTS, ROOT, as_on_site


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add documents of the root, the reference of commands, and the examples, which are run."""
    for document, name in DOCUMENTS.items():
        text = as_on_site((ROOT / document).read_text(encoding="utf-8"), ".", name)
        files.append(File.generated(config, name, content=text))
    files.append(File.generated(config, "reference/commands.md", content=commands.page()))
    with tempfile.TemporaryDirectory() as folder:
        for script in sorted((ROOT / "examples").glob("*.py")):
            content = cells.example(script, Path(folder))
            files.append(File.generated(config, f"examples/{script.stem}.md", content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Links out of `docs/` lead to the page that the file has on the site."""
    name = page.file.src_uri
    folder = posixpath.join("docs", posixpath.dirname(name))
    return markdown if page.file.generated_by else as_on_site(markdown, folder, name)

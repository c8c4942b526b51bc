"""`python -m website.links FOLDER`: links and anchors of a built site lead somewhere, nothing is loaded from afar."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

_LOADED = {("script", "src"), ("img", "src"), ("link", "href"), ("iframe", "src")}
_NOT_LOADED = {"canonical", "prev", "next", "alternate"}  # links of a head that name pages


@dataclass
class Document(HTMLParser):
    """The anchors, links and resources of a page, and images that say nothing to those who cannot see."""

    content: str
    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)
    silent: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self.feed(self.content)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "img" and not values.get("alt"):
            self.silent.append(values.get("src", "")[:60])
        for name in ("href", "src"):
            if name in values and (tag, name) in _LOADED and values.get("rel") not in _NOT_LOADED:
                self.loaded.append(values[name])
            elif name in values:
                self.links.append(values[name])


def check(site: Path) -> list[str]:
    """What is wrong with a site, in sentences."""
    files = sorted(site.rglob("*.html"))
    pages = {path.resolve(): Document(path.read_text(encoding="utf-8")) for path in files}
    wrong = []
    for path, page in pages.items():
        name = path.relative_to(site.resolve())
        base = site.resolve() if name.name == "404.html" else path.parent  # served from anywhere
        wrong += [f"{name}: image without a description: {source}" for source in page.silent]
        wrong += [f"{name}: loaded from elsewhere: {url}" for url in page.loaded if urlsplit(url).netloc]
        for url in page.links + page.loaded:
            if problem := _problem(url, path, base, site.resolve(), pages):
                wrong.append(f"{name}: {problem}")
    return wrong if files else [f"{site} has no pages: expected the folder of a built site."]


def _problem(url: str, page: Path, base: Path, site: Path, pages: dict[Path, Document]) -> str:
    split = urlsplit(url)
    if split.scheme or split.netloc:
        return ""
    path = unquote(split.path)
    target = page if not path else (site / path.lstrip("/") if path.startswith("/") else base / path).resolve()
    target = target / "index.html" if target.is_dir() else target
    if not target.is_file():
        return f"link to {url}, which does not exist"
    anchor = unquote(split.fragment)
    if anchor and not anchor.startswith("__") and target in pages and anchor not in pages[target].anchors:
        return f"link to {url}, where there is no such anchor"
    return ""


def main() -> None:
    site = Path(sys.argv[1])
    wrong = check(site)
    print("\n".join(wrong) or f"{len(list(site.rglob('*.html')))} pages: all links and anchors exist")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()

"""What mkdocstrings asks for while it reads the package."""

from __future__ import annotations

from typing import Any

from griffe import Extension, Object

from website.docstrings import readable


class Readable(Extension):
    """Applied to every docstring before it is parsed."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = readable(obj.docstring.value)

"""Base class of frozen dataclasses that cache results."""

from __future__ import annotations

from dataclasses import fields


class Value:
    """Base of frozen dataclasses with cached properties: copies and pickles contain the fields only."""

    def __getstate__(self) -> dict[str, object]:
        return {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]

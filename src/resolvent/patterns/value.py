"""Values: equal when their fields are, whatever they have worked out since."""

from __future__ import annotations

from dataclasses import fields
from typing import Any


class Value:
    """Base of frozen dataclasses that remember results: copies and pickles carry the fields alone."""

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]

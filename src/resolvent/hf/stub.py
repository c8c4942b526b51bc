"""What is saved beside a model, so that Auto classes find this package where it is installed."""

from __future__ import annotations

from pathlib import Path

from resolvent.files import write_text

_MODULE = "modeling_resolvent"
_TEXT = '''"""Loads the package that this model is of: pip install 'resolvent[hf]'."""

from resolvent.hf import ResolventConfig, ResolventForCausalLM, ResolventModel

__all__ = ["ResolventConfig", "ResolventForCausalLM", "ResolventModel"]
'''
AUTO_MAP = {
    "AutoConfig": f"{_MODULE}.ResolventConfig",
    "AutoModel": f"{_MODULE}.ResolventModel",
    "AutoModelForCausalLM": f"{_MODULE}.ResolventForCausalLM",
}


def write_stub(folder: str | Path) -> None:
    write_text(Path(folder) / f"{_MODULE}.py", _TEXT)

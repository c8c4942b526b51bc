"""Settings of a run as a TOML file: written beside each run, and read by `resolvent train --config`.

    preset = "quick"        # where settings that are left out come from; a file beside a run has all of them

    [task]
    name = "text"
    corpus = "out/text/book-bytes"

    [model]
    pattern = "quadratic+cache"

    [train]
    steps = 500
    spike = "none"          # TOML has no null

    [rates]                 # learning rates by pattern, as `resolvent study tune` finds them
    "quadratic+cache" = 0.004
    dense = 0.002

No torch here.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from resolvent.errors import SettingError, closest
from resolvent.fields import as_mapping, as_text
from resolvent.files import write_text
from resolvent.patterns import pattern
from resolvent.patterns.checks import require_length
from resolvent.train.config import LENGTHS, SECTIONS, RunConfig
from resolvent.untrusted import MOST_BYTES, open_file

FILE = "config.toml"
RATES = "rates"
_NONE = "none"


@final
@dataclass(frozen=True)
class ConfigFile:
    """What a file says: a preset, settings by section, and learning rates by the spelling of a pattern.

    Names of settings are checked when they are laid over a config.
    """

    path: Path
    preset: str | None
    sections: Mapping[str, Mapping[str, object]]
    rates: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> ConfigFile:
        """From a file; what is not TOML, or no section of a run, raises an error."""
        try:
            with open_file(path) as file:
                content = tomllib.loads(file.read(MOST_BYTES).decode("utf-8"))
        except OSError as error:
            raise SettingError(f"cannot read {path} ({error.strerror}): expected a TOML file of settings.") from None
        except (ValueError, RecursionError) as error:  # not TOML, or not UTF-8
            raise SettingError(f"{path} is not TOML: {error}.") from None
        known = ("preset", *SECTIONS, RATES)
        for name in content:
            if name not in known:
                raise SettingError(
                    f"unknown name '{name}' in {path}: expected {', '.join(known)}.{closest(name, known)}"
                )
        preset, rates = content.pop("preset", None), as_mapping(content.pop(RATES, {}), f"[{RATES}]")
        sections = {
            name: {key: _value(name, key, value) for key, value in as_mapping(given, f"[{name}]").items()}
            for name, given in content.items()
        }
        return cls(path, None if preset is None else as_text(preset, "preset"), sections, _rates(path, rates))

    @property
    def task(self) -> str | None:
        """The name of the task, if it says which."""
        name = self.sections.get("task", {}).get("name")
        return None if name is None else as_text(name, "task.name")

    def setting(self, section: str, key: str) -> object:
        return self.sections.get(section, {}).get(key)

    def rate(self, structure: str) -> float | None:
        """The learning rate of a pattern; None if the file has no rates. One that is missing raises an error."""
        if not self.rates:
            return None
        name, spelling = str(pattern(structure)), pattern(structure).spelling
        if spelling not in self.rates:
            raise SettingError(
                f"{self.path} has no learning rate for {name}: expected {', '.join(self.rates)}; or find one with "
                f"'resolvent study tune --structures {name}'."
            )
        return self.rates[spelling]

    def over(self, config: RunConfig) -> RunConfig:
        """The config with what the file says instead."""
        try:
            return config.updated(self.sections)
        except ValueError as error:
            raise SettingError(f"{self.path}: {error}") from None


def write_config(path: Path, config: RunConfig) -> None:
    """All settings of a run; `resolvent train --config` with this file repeats it."""
    lines = [f"# All settings of a run. To repeat it: resolvent train --config {path.name}"]
    for section, settings in config.to_dict().items():
        lines += ["", f"[{section}]", *(f"{key} = {_spelled(value)}" for key, value in settings.items())]
    write_text(path, "\n".join(lines) + "\n")


def write_rates(
    path: Path, rates: Mapping[str, float], preset: str, sections: Mapping[str, Mapping[str, object]],
    comments: Sequence[str],
) -> None:  # fmt: skip
    """Learning rates by pattern, for `resolvent train --config` and `resolvent study --rates`."""
    lines = [*(f"# {comment}" for comment in comments), f"preset = {_spelled(preset)}"]
    for section, settings in (*sections.items(), (RATES, {pattern(each).spelling: r for each, r in rates.items()})):
        key = _spelled if section == RATES else str
        if settings:
            lines += ["", f"[{section}]", *(f"{key(name)} = {_spelled(value)}" for name, value in settings.items())]
    write_text(path, "\n".join(lines) + "\n")


def read_config(path: Path) -> RunConfig:
    """The config in a file that has all settings, as `write_config` writes it."""
    try:
        return RunConfig.from_dict(ConfigFile.read(path).sections)
    except ValueError as error:
        raise SettingError(f"{path} is damaged: {error}") from None


def _rates(path: Path, given: Mapping[str, object]) -> dict[str, float]:
    """By the spelling of the pattern, however it is written there."""
    rates = {}
    for name, value in given.items():
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
            raise SettingError(f"{path}: expected the learning rate of {name} to be a number > 0, got {value!r}.")
        try:
            rates[pattern(name).spelling] = float(value)
        except ValueError as error:
            raise SettingError(f"{path}, [{RATES}]: {error}") from None
    return rates


def _value(section: str, key: str, value: object) -> object:
    if isinstance(value, str) and f"{section}.{key}" in LENGTHS:
        return require_length(value)
    return None if value == _NONE else value


def _spelled(value: object) -> str:
    """A value in TOML. Strings are JSON's, with the one character escaped that TOML forbids and JSON allows."""
    if value is None:
        return json.dumps(_NONE)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # inf and nan are the words of TOML, too
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_spelled, value))}]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")

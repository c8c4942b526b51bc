"""Settings of all tests."""

import traceback
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import resolvent as rv

# Neither deadlines nor slow generation say anything about the code on a machine that others use.
settings.register_profile("steady", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steady")


def pytest_make_parametrize_id(config: pytest.Config, val: object, argname: str) -> str | None:  # noqa: ARG001
    """Patterns that have no short spelling by their label."""
    return str(val) if isinstance(val, rv.Pattern) else None


class EndedJob:
    """A cell that has run before anybody asks for it."""

    def __init__(self, status: int) -> None:
        self._status = status

    def poll(self) -> int:
        return self._status

    def terminate(self) -> None:
        """There is nothing left to end."""


@pytest.fixture
def cells_run_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells of studies in this process: another imports torch for seconds, to train for less.

    For tests of what commands print and write; that cells are processes is tested with the study of table 1.
    """

    def run(folder: Path, threads: int, variables: Mapping[str, str] | None = None) -> EndedJob:  # noqa: ARG001
        from resolvent.studies import cell
        from resolvent.studies.engines import LOG

        try:
            cell.run(folder)
        except Exception:
            (folder / LOG).write_text(traceback.format_exc())
            return EndedJob(1)
        return EndedJob(0)

    monkeypatch.setattr("resolvent.studies.engines.local.start_process", run)
    monkeypatch.setattr("resolvent.studies.grid._PAUSE", 0)

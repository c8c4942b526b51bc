"""Settings of all tests."""

import pytest
from hypothesis import HealthCheck, settings

import resolvent as rv

# Neither deadlines nor slow generation say anything about the code on a machine that others use.
settings.register_profile("steady", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steady")


def pytest_make_parametrize_id(config: pytest.Config, val: object, argname: str) -> str | None:  # noqa: ARG001
    """Patterns that have no short spelling by their label."""
    return str(val) if isinstance(val, rv.Pattern) else None

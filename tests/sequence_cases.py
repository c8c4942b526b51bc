"""How sequences are cut in tests that do so: a length, sizes of parts, and how many of them are tried."""

import hypothesis.strategies as st
import pytest
from hypothesis import settings

from tests.operator_cases import ALL

N = 48
EVERY = pytest.mark.parametrize("spec", [*ALL, "dense+diagonal", "offsets:2,5+cache"])
splits = st.lists(st.integers(0, 12), min_size=1, max_size=12)
few = settings(max_examples=5, derandomize=True)

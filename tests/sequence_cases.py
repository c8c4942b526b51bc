"""How sequences are cut in tests that do so: a length, sizes of parts, and how many of them are tried."""

import hypothesis.strategies as st
import pytest
from hypothesis import settings

from tests.operator_cases import KINDS

N = 48
EVERY = pytest.mark.parametrize("spec", KINDS)
splits = st.lists(st.integers(0, 12), min_size=1, max_size=12)
few = settings(max_examples=3, derandomize=True)

"""Small wrong changes, as patches, which the tests must notice: `python -m fuzz.mutants`.

The first line of a patch says what it breaks; a second one, `Try: tests/…`, may name tests to run first;
those that no longer exist are left out.
"""

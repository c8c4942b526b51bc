"""Docstrings are executed: every example of the public surface, and there is one for each of its functions."""

import doctest
import importlib
import inspect
import pkgutil

import pytest

import resolvent as rv
from resolvent import analysis, patterns, rules

LIGHT = sorted(
    module.name
    for package in (patterns, analysis, rules)
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
)
MODULES = [*LIGHT, "resolvent.coefficients", "resolvent.ops.api", "resolvent.ops.cache.slots",
           "resolvent.ops.cache.stages", "resolvent.designer.design", "resolvent.mixer", "resolvent.model.config",
           "resolvent.model.diagnostics", "resolvent.model.language_model", "resolvent.hf.config",
           "resolvent.hf.convert", "resolvent.hf.model",
           "resolvent.hf.replace", "resolvent.hf.tokenizer"]  # fmt: skip
# What functions return or raise: nobody makes one.
RESULTS = ("Comparison", "Design", "PatternError", "Profile", "Routing")
FUNCTIONS = [name for name in rv.__all__ if inspect.isfunction(getattr(rv, name))]
CLASSES = [name for name in rv.__all__ if inspect.isclass(getattr(rv, name)) and name not in RESULTS]


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name: str) -> None:
    module = importlib.import_module(name)
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    for test in doctest.DocTestFinder().find(module, name):
        report: list[str] = []
        runner.run(test, out=report.append)
        assert runner.failures == 0, "".join(report)


@pytest.mark.parametrize("name", [*FUNCTIONS, *CLASSES])
def test_public_names_have_examples(name: str) -> None:
    function = getattr(rv, name)
    assert ">>>" in function.__doc__
    assert inspect.unwrap(function).__module__ in MODULES, "an example that is not run"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_public_functions_say_what_they_take_and_return(name: str) -> None:
    text = getattr(rv, name).__doc__
    assert "Returns:" in text
    if "other arguments are those of `mix`" not in text:
        assert [each for each in inspect.signature(getattr(rv, name)).parameters if each not in text] == []


@pytest.mark.parametrize("name", MODULES)
def test_docstrings_begin_with_a_word(name: str) -> None:
    """Not with a capitalized symbol, such as "Y = …" or "N paths"."""
    for test in doctest.DocTestFinder(exclude_empty=True).find(importlib.import_module(name), name):
        first = test.docstring.split(maxsplit=1)[0]
        assert first == "A" or len(first) > 1, f"{test.name}: {test.docstring[:60]}"

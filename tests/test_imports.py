"""Who may import whom, and what importing costs."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import resolvent as rv

SOURCE = Path(rv.__file__).parent

# From left to right: a box imports only boxes to its left (and itself).
FLOW = [
    "files", "patterns", "analysis", "ops", "coefficients", "mixer", "model", "tasks", "text", "train", "bench",
    "report", "studies", "cli",
]  # fmt: skip
WITHOUT_TORCH = ["files", "patterns", "analysis", "text", "report", "cli"]


def imports_of(file: Path) -> set[str]:
    """Full names of the modules a file imports, inside functions too."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def files_of(box: str) -> list[Path]:
    return sorted((SOURCE / box).glob("*.py")) if (SOURCE / box).is_dir() else [SOURCE / f"{box}.py"]


def test_every_module_is_in_the_flow() -> None:
    boxes = {path.stem for path in SOURCE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert boxes - {"__init__", "__main__"} == set(FLOW)


@pytest.mark.parametrize("box", FLOW)
def test_boxes_import_only_to_their_left(box: str) -> None:
    allowed = FLOW[: FLOW.index(box) + 1]
    for file in files_of(box):
        for name in imports_of(file):
            if name.startswith("resolvent."):
                assert name.split(".")[1] in allowed, f"{file.name} imports {name}"
            if name.split(".")[0] == "torch":
                assert box not in WITHOUT_TORCH, f"{file.name} imports {name}"
            if box == "patterns":
                assert name.split(".")[0] not in {"numba", "scipy", "matplotlib", "rich"}, f"{file.name} imports {name}"


def in_a_new_process(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_analysis_never_loads_torch() -> None:
    code = """
import sys, resolvent
resolvent.analyze("exponential+cache", 256)
resolvent.analyze("quadratic", 100, effort="exact")
from resolvent.report import figures
figures.profile_figure(resolvent.analyze("local:8", 64))
assert "torch" not in sys.modules
resolvent.solve
assert "torch" in sys.modules
"""
    in_a_new_process(code)


def test_import_is_quick() -> None:
    """The quietest of five new processes, counted from the first line of `import resolvent`."""
    code = "import time; t = time.perf_counter(); import resolvent; print(time.perf_counter() - t)"
    assert min(float(in_a_new_process(code)) for _ in range(5)) < 0.3


def test_import_loads_no_optional_package() -> None:
    heavy = ["torch", "numba", "scipy", "matplotlib", "rich", "typer"]
    code = f"import sys, resolvent; print([m for m in {heavy} if m in sys.modules])"
    assert in_a_new_process(code).strip() == "[]"


def test_public_names() -> None:
    for name in rv.__all__:
        assert getattr(rv, name) is not None
    assert dir(rv) == sorted(rv.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = rv.nothing

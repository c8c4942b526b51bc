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
    "errors", "files", "disk_cache", "untrusted", "fields", "tensor_files", "kernels", "patterns", "rules",
    "analysis", "designer", "explore", "ops", "coefficients", "mixer", "model", "batch", "text", "tasks", "hf", "train",
    "bench", "report", "studies", "cli",
]  # fmt: skip
WITHOUT_TORCH = [
    "errors", "files", "disk_cache", "untrusted", "fields", "tensor_files", "kernels", "patterns", "rules",
    "analysis", "designer", "explore", "batch", "text", "tasks", "report", "cli",
]  # fmt: skip


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
    return sorted((SOURCE / box).rglob("*.py")) if (SOURCE / box).is_dir() else [SOURCE / f"{box}.py"]


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
resolvent.analyze("local:8", 64).plot()
resolvent.design(64, slots=4).plot()
assert "torch" not in sys.modules
resolvent.solve
assert "torch" in sys.modules
"""
    in_a_new_process(code)


def test_import_loads_little() -> None:
    """Counted in modules, since time is the machine's: our own, and no more than a few of the standard library's."""
    code = """
import sys, numpy
before = set(sys.modules)
import resolvent
print(*sorted(set(sys.modules) - before))
"""
    loaded = in_a_new_process(code).split()
    boxes = {name.split(".")[1] for name in loaded if name.startswith("resolvent.")}
    assert boxes == {"analysis", "errors", "patterns", "rules"}
    assert {name.split(".")[0] for name in loaded} <= {"resolvent", "numpy"} | sys.stdlib_module_names
    # 18 modules on Python 3.11, json and dataclasses most of them; numba adds more than 300, rich and typer 100 each.
    assert len([name for name in loaded if name.split(".")[0] != "resolvent"]) <= 30
    assert len(loaded) <= 80


@pytest.mark.parametrize("modules", [
    ["model.config", "tasks", "train", "train.config", "train.record", "train.state", "train.metrics", "train.runs"],
    ["text", "train.config_file"],
    ["studies.registry", "studies.render", "studies.page", "studies.grid"],
    ["bench.record", "studies.speed", "cli"],
])  # fmt: skip
def test_configs_records_and_reports_load_no_torch(modules: list[str]) -> None:
    names = ", ".join(f"resolvent.{name}" for name in modules)
    heavy = {"torch", "matplotlib", "tiktoken", "tokenizers", "pyarrow", "datasets"}
    in_a_new_process(f"import sys, {names}; assert not {heavy} & set(sys.modules)")


def test_a_study_is_reported_without_torch() -> None:
    """Table, claims and figures from the committed records."""
    code = f"""
import sys
from pathlib import Path
from resolvent.studies.registry import STUDIES
from resolvent.studies.page import page
from resolvent.train.record import read_records
for name in ("table1-longer", "length-quick"):
    records = read_records(Path({str(SOURCE.parents[1] / "docs" / "records")!r}) / f"{{name}}.jsonl")
    assert "data:image/png" in page(STUDIES[name.partition("-")[0]].report(records), name)
assert "torch" not in sys.modules
"""
    in_a_new_process(code)


def test_layers_load_no_compiler() -> None:
    """torch._dynamo takes seconds to import, in every process of a study."""
    code = """
import sys, resolvent as rv
for pattern, rule in (("exponential+cache", "softmax:gate=mamba"), ("first-order", "mamba2"), ("dense", "tied")):
    rv.LanguageModel.shape_only(rv.ModelConfig(layers=1, pattern=pattern, rule=rule))
print('torch._dynamo' in sys.modules)
"""
    assert in_a_new_process(code).strip() == "False"


def test_public_names() -> None:
    for name in rv.__all__:
        assert getattr(rv, name) is not None
    assert dir(rv) == sorted(rv.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = rv.nothing

"""Readers of files: what is damaged is read, or refused in the package's own words, in little time and memory."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from docs.speed import section
from fuzz import samples
from fuzz.case import Case
from fuzz.mutate import damage, distort, distorted_json, distorted_safetensors, dump
from fuzz.permitted import permitted
from resolvent.bench.record import KINDS, read_bench_records
from resolvent.errors import RunError
from resolvent.model import LanguageModel, ModelConfig
from resolvent.text import Corpus
from resolvent.train import Record, RunConfig, train
from resolvent.train.metrics import read_metrics
from resolvent.train.record import read_records

# ValueError is the parent of all errors about inputs; a file that is missing is the system's to report.
_REFUSALS = (ValueError, RunError, FileNotFoundError)
_PARSED = (1, 3, 50)  # values that have been read are not nested deeper than readers allow
_NESTED = ("layout", "state")  # metadata of safetensors that is JSON itself


@contextmanager
def _damaged(case: Case, files: samples.Files, names: Callable[[str], bool] = lambda _: True) -> Iterator[Path]:
    """These files in a folder, one of them damaged or missing."""
    name = case.choose(sorted(filter(names, files)))
    content = _mutated(case, name, files[name])
    case.say(file=name, content=_shown(content))
    with tempfile.TemporaryDirectory() as folder:
        samples.write(files | {name: content}, Path(folder))
        if case.chance(0.02):
            (Path(folder) / name).unlink()
        yield Path(folder)


def _mutated(case: Case, name: str, content: bytes) -> bytes:
    if name.endswith(".json"):
        return distorted_json(case, content)
    if name.endswith(".jsonl"):
        lines = content.splitlines()
        at = case.integer(0, len(lines) - 1)
        lines[at] = distorted_json(case, lines[at])
        return b"\n".join(lines) + b"\n"
    if name.endswith(".safetensors"):
        return distorted_safetensors(case, content, _NESTED)
    return damage(case, content)


def _shown(content: bytes) -> str:
    return repr(content) if len(content) < 3000 else f"{content[:3000]!r}… ({len(content):,} bytes)"


def model(case: Case) -> None:
    files = {name.removeprefix("model/"): c for name, c in samples.finished_run().items() if name.startswith("model/")}
    with _damaged(case, files) as folder, permitted(*_REFUSALS) as result:
        LanguageModel.load(folder)
    case.count("refused", int(result.refused))


def model_config(case: Case) -> None:
    values = distort(case, json.loads(json.dumps(samples.CONFIG.model.to_dict())), _PARSED)
    case.say(values=_shown(dump(values)))
    if isinstance(values, dict):
        with permitted(*_REFUSALS) as result:
            ModelConfig.from_dict(values, complete=case.chance(0.5)).to_dict()
        case.count("refused", int(result.refused))


def run_config(case: Case) -> None:
    """As a mapping, and as assignments on a command line."""
    values = json.loads(json.dumps(samples.CONFIG.to_dict()))
    if case.chance(0.5):
        changed = distort(case, values, _PARSED)
        case.say(values=_shown(dump(changed)))
        if isinstance(changed, dict):
            with permitted(*_REFUSALS):
                RunConfig.from_dict(changed).to_dict()
        return
    section = case.choose(list(values))
    name = case.choose(list(values[section]))
    text = (
        dump(distort(case, [values[section][name]]))
        .decode("utf-8", "surrogatepass")
        .removeprefix("[")
        .removesuffix("]")
    )
    assignment = f"{section}.{name}={text}"
    if case.chance(0.2):
        assignment = damage(case, assignment.encode("utf-8", "replace")).decode("utf-8", "replace")
    case.say(assignment=assignment[:3000])
    with permitted(*_REFUSALS):
        samples.CONFIG.changed([assignment]).to_dict()


def checkpoint(case: Case) -> None:
    """A run that resumes from it, and goes on for one step if it is accepted."""
    sharded = case.chance(0.4)
    files, config = samples.interrupted_run(sharded=sharded), samples.SHARDED if sharded else samples.CONFIG
    with _damaged(case, files) as folder, permitted(*_REFUSALS) as result, suppress(samples.Stopped):
        train(config, folder, samples.stop_at(1))  # type: ignore[arg-type]
    case.count("refused", int(result.refused))


def record(case: Case) -> None:
    files = samples.finished_run()
    line = json.dumps(json.loads(files["run.json"])).encode() + b"\n"
    with _damaged(case, {"run.json": files["run.json"], "runs.jsonl": line * 2}) as folder:
        with permitted(*_REFUSALS) as result:
            Record.read(folder / "run.json").to_dict()
        with permitted(*_REFUSALS) as other:
            read_records(folder / "runs.jsonl")
    case.count("refused", int(result.refused or other.refused))


def bench(case: Case) -> None:
    """Records of benchmarks, and all that documents show of them."""
    with _damaged(case, samples.benchmarks()) as folder, permitted(*_REFUSALS) as result:
        records = read_bench_records(folder / "bench.jsonl")
        for name in ("setup", *KINDS, "wait-policy", "readme"):
            section(records, name)
    case.count("refused", int(result.refused))


def metrics(case: Case) -> None:
    files = {"metrics.jsonl": samples.finished_run()["metrics.jsonl"]}
    with _damaged(case, files) as folder, permitted(*_REFUSALS):
        for line in read_metrics(folder / "metrics.jsonl"):
            line.to_dict()


def corpus(case: Case) -> None:
    with _damaged(case, samples.corpus()) as folder, permitted(*_REFUSALS) as result:
        opened = Corpus.open(folder, hashes=case.chance(0.5))
        str(opened)
        for split in opened.counts:
            opened.split(split)
    case.count("refused", int(result.refused))

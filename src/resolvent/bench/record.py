"""Records of benchmarks: what was measured, on which machine, with which settings. Reports need nothing else; no torch.

A file has one record a line, all of one machine. `add_record` replaces the record of an earlier run of the same kind.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Literal, TypeVar, cast, final, get_args

from resolvent.errors import SettingError, shortened
from resolvent.fields import (
    Amount,
    Count,
    Positive,
    as_list,
    as_mapping,
    as_text,
    check_format,
    check_names,
    check_types,
    field_names,
)
from resolvent.files import write_text
from resolvent.train.record import Environment
from resolvent.untrusted import parse, read_lines

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_Made = TypeVar("_Made", bound="DataclassInstance")

FORMAT, VERSION = "resolvent-bench", 1
# For torch's own loops, its libraries of matrix products, and our kernels.
AVX2_ALONE = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "NUMBA_CPU_NAME": "haswell",
}
WAIT_POLICY = "OMP_WAIT_POLICY"  # the environment variable; OpenMP reads it when torch is imported
PASSIVE = "passive"  # threads that wait sleep
PLAIN = "plain"  # the variable is not set: what a script gets that does nothing about it
OPTIONAL_PACKAGES = ("transformers", "scipy")
# Those that kernels are compiled for, or torch chooses by; LLVM's names.
_FEATURES = ("sse4.2", "avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512bf16", "avx512fp16",
             "amx-bf16", "neon", "sve", "sve2", "bf16")  # fmt: skip

Kind = Literal["operator", "decode", "generate", "training"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Pass = Literal["forward", "both"]
PASSES: dict[Pass, str] = {"forward": "forward", "both": "forward and backward"}  # workloads of the operator
PEERS = {  # of the operator
    "sdpa": "torch's causal scaled_dot_product_attention",
    "flex": "FlexAttention, compiled, on the non-zeros of the pattern's A; no feedback, forward only on a CPU",
    "paper": "the paper's way: dense masked matrices and torch.linalg.solve_triangular (dense pattern)",
    "scipy": "scipy.sparse.linalg.spsolve_triangular with ready-made coefficients of the pattern; one head on one "
    "thread, times batch × heads; forward only",
}
PER_PATTERN = ("flex", "scipy")  # peers with one case for each pattern, such as "flex exponential"
ONE_TOKEN = "one token"  # of `extend`
CALL = "generate()"  # a call that reads a prompt and generates


class BenchRecordError(SettingError):
    """A file that does not hold records of benchmarks, or a damaged one."""


@final
@dataclass(frozen=True)
class Machine:
    """All threads together: float32 matrix products, and bytes loaded out of each level of memory."""

    matmul_gflops: Amount
    l1_gbs: Amount
    l2_gbs: Amount
    dram_gbs: Amount

    def __post_init__(self) -> None:
        check_types(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> Machine:
        return _made(cls, values, "the measured limits of a machine")


@final
@dataclass(frozen=True)
class Missing:
    """A case that could not run, and why."""

    case: str
    reason: str

    def __post_init__(self) -> None:
        check_types(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> Missing:
        return _made(cls, values, "a missing case")


@final
@dataclass(frozen=True)
class Host:
    """The processor, and how its threads were used. `wait_policy` is that of OpenMP, "plain" if nothing sets it;
    `features` are those that it has, less those that the environment forbids.
    """

    cpu: str
    features: tuple[str, ...]
    threads: Positive
    wait_policy: str

    def __post_init__(self) -> None:
        check_types(self)

    @classmethod
    def current(cls, threads: int) -> Host:
        from llvmlite import binding

        has, limited = binding.get_host_cpu_features(), avx2_alone()
        name = f"{_cpu_name()} ({binding.get_host_cpu_name()})"
        used = tuple(f for f in _FEATURES if has.get(f) and not (limited and f.startswith("avx512")))
        return cls(name, used, threads, wait_policy())

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> Host:
        features = [as_text(each, "a feature") for each in as_list(values.get("features", ()), "features")]
        return _made(cls, {**values, "features": tuple(features)}, "a host")


@final
@dataclass(frozen=True)
class Measurement:
    """One case at one length: the median and the range over the rounds, in seconds.

    case        a pattern, or a peer by its name; `peer` says which
    workload    what was timed, such as "forward", "one token" or "batch 8, ragged"
    n           tokens of a sequence, or those that a cache holds before the first one timed
    tokens      that are mixed, trained on or generated in this time
    share       of the bound: the time that the machine would need at least, over the time it took
    Null where it was not measured, or does not apply.
    """

    case: str
    peer: bool
    workload: str
    n: Positive
    tokens: Positive
    seconds: Amount
    least: Amount
    most: Amount
    share: Amount | None = None
    parameters: Positive | None = None
    cache_bytes: Count | None = None
    peak_bytes: Count | None = None

    def __post_init__(self) -> None:
        check_types(self)
        if not 0 < self.least <= self.seconds <= self.most:
            times = f"{self.least}, {self.seconds} and {self.most}"
            raise SettingError(f"expected least, seconds and most > 0 in this order, got {times}.")

    @classmethod
    def of(
        cls, times: Sequence[float], case: str, workload: str, n: int, tokens: int, **others: float | None
    ) -> Measurement:
        """From the times of all rounds; `others` are the other fields."""
        make: Callable[..., Measurement] = cls
        times_of_case = {"seconds": median(times), "least": min(times), "most": max(times)}
        return make(
            **{"case": case, "peer": False, "workload": workload, "n": n, "tokens": tokens, **times_of_case, **others}
        )

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> Measurement:
        return _made(cls, values, "a measurement")


@final
@dataclass(frozen=True)
class BenchRecord:
    """A benchmark that ran: all its cases took turns in one process.

    shape    of what ran: a preset of models, or heads and their dimension
    limits   of the machine, measured in the same run
    """

    kind: Kind
    shape: str
    rounds: Positive
    host: Host
    environment: Environment
    limits: Machine
    measurements: tuple[Measurement, ...]
    missing: tuple[Missing, ...] = ()

    def __post_init__(self) -> None:
        check_types(self)
        if self.kind not in KINDS:
            raise SettingError(f"expected a kind of benchmark among {', '.join(KINDS)}, got {shortened(self.kind)}.")
        if not self.measurements:
            raise SettingError("expected at least one measurement, got none.")

    @classmethod
    def new(cls, kind: Kind, shape: str, rounds: int, threads: int, limits: Machine,
            measurements: Sequence[Measurement], missing: Sequence[Missing] = ()) -> BenchRecord:  # fmt: skip
        """Of a benchmark that has just run here."""
        environment = _environment()
        return cls(kind, shape, rounds, Host.current(threads), environment, limits, tuple(measurements), tuple(missing))

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for a run that replaces this one in a file."""
        return self.kind, self.shape, self.host

    def at(self, workload: str, n: int) -> dict[str, Measurement]:
        """The cases that took turns there, by name."""
        return {m.case: m for m in self.measurements if (m.workload, m.n) == (workload, n)}

    @property
    def workloads(self) -> list[str]:
        return list(dict.fromkeys(m.workload for m in self.measurements))

    def lengths(self, workload: str) -> list[int]:
        return sorted({m.n for m in self.measurements if m.workload == workload})

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON."""
        return {"format": FORMAT, "version": VERSION, **dataclasses.asdict(self)}

    @classmethod
    def from_dict(cls, content: object) -> BenchRecord:
        values = as_mapping(content, "a benchmark's record")
        check_format(values, FORMAT, VERSION, "a benchmark's record")
        check_names(values, field_names(cls), "a benchmark's record", optional=())
        kind = as_text(values["kind"], "kind")
        return cls(
            kind=cast("Kind", kind),  # checked by the class itself
            shape=as_text(values["shape"], "shape"),
            rounds=cast("int", values["rounds"]),
            host=Host.from_dict(as_mapping(values["host"], "host")),
            environment=Environment.from_dict(as_mapping(values["environment"], "environment")),
            limits=Machine.from_dict(as_mapping(values["limits"], "limits")),
            measurements=tuple(
                Measurement.from_dict(as_mapping(each, "a measurement"))
                for each in as_list(values["measurements"], "measurements")
            ),
            missing=tuple(
                Missing.from_dict(as_mapping(each, "a missing case")) for each in as_list(values["missing"], "missing")
            ),
        )


def read_bench_records(path: Path) -> list[BenchRecord]:
    """The records of a file with one a line."""
    records: list[BenchRecord] = []
    for number, line in read_lines(path):
        try:
            records.append(BenchRecord.from_dict(parse(line)))
            _require_one_machine(records)
        except ValueError as error:
            raise BenchRecordError(f"{path}, line {number}: expected a benchmark's record in JSON ({error}).") from None
    if not records:
        raise BenchRecordError(f"{path} is empty: expected records of benchmarks, one a line.")
    return records


def add_record(record: BenchRecord, path: Path) -> None:
    """Write a record into a file, in the place of an earlier one with the same key, or after the others."""
    records = read_bench_records(path) if path.exists() else []
    try:
        _require_one_machine([*records, record])
    except SettingError as error:
        raise BenchRecordError(f"{path}: {error} Choose another --out.") from None
    keys = [each.key for each in records]
    if record.key in keys:
        records[keys.index(record.key)] = record
    else:
        records.append(record)
    write_text(path, "".join(json.dumps(each.to_dict(), separators=(",", ":")) + "\n" for each in records))


def wait_policy() -> str:
    """What OpenMP was told to do with threads that wait, or "plain"."""
    return os.environ.get(WAIT_POLICY, PLAIN).lower()


def avx2_alone() -> bool:
    """Whether the environment keeps torch and the kernels from using AVX-512."""
    return all(os.environ.get(name) == value for name, value in AVX2_ALONE.items())


def _require_one_machine(records: Sequence[BenchRecord]) -> None:
    machines = dict.fromkeys((record.host.cpu, record.environment.machine) for record in records)
    if len(machines) > 1:
        (first, _), (second, _) = list(machines)[:2]
        raise SettingError(f"expected records of one machine, got some of {first} and some of {second}.")


def _environment() -> Environment:
    current, packages = Environment.current(), dict[str, str]()
    for name in OPTIONAL_PACKAGES:
        try:
            packages[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return dataclasses.replace(current, packages={**current.packages, **packages})


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _made(kind: type[_Made], values: Mapping[str, object], what: str) -> _Made:
    check_names(values, field_names(kind), what, optional=())
    make: Callable[..., _Made] = kind  # which checks its values
    return make(**values)

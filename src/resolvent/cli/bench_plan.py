"""What `resolvent bench` runs: the defaults of its modes, which options go with which, and runs in other processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import typer

from resolvent.errors import SettingError, closest
from resolvent.files import require_writable
from resolvent.patterns import PAPER_STRUCTURES
from resolvent.patterns.checks import require_length

Mode = Literal["operator", "decode", "generate", "train-step", "all"]

SPARSE_STRUCTURES = [spec for spec in PAPER_STRUCTURES if spec not in ("attention", "local:8", "dense")]
WAIT_POLICIES = ("plain", "passive", "active")

_ANY = {"specs", "n", "rounds", "threads", "batch", "plot", "as_json", "avx2"}
_OPTIONS: dict[Mode, set[str]] = {
    "operator": _ANY | {"against", "heads", "head_dim", "backend", "memory"},
    "decode": _ANY - {"plot"} | {"heads", "head_dim", "against"},
    "generate": _ANY | {"preset", "tokens", "against"},
    "train-step": _ANY | {"preset", "against"},
    "all": {"threads"},
}
_EVERYWHERE = {"generate", "train_step", "decode", "everything", "quick", "wait_policy", "out"}
_PEERS: dict[Mode, tuple[list[str], ...]] = {  # where there is no choice of them but none
    "decode": (["sdpa"],),
    "generate": (["none"], ["transformers"]),
    "train-step": (["none"], ["transformers"]),
}


@dataclass(frozen=True)
class Plan:
    """What is timed; `preset` is of whole models."""

    mode: Mode
    patterns: list[str]
    lengths: list[int]
    rounds: int
    preset: str = ""

    @property
    def description(self) -> str:
        """For the progress bar."""
        sizes = ", ".join(f"{length:,}" for length in self.lengths)
        what = f"{self.preset} with {len(self.patterns)}" if self.preset else f"{len(self.patterns)}"
        return f"timing {what} patterns on {sizes} tokens"


_MODELS = ["exponential+cache", "quadratic+cache"]
_DEFAULTS = {
    "operator": Plan("operator", SPARSE_STRUCTURES, [4096], 7),
    "decode": Plan("decode", SPARSE_STRUCTURES, [4096], 7),
    "generate": Plan("generate", [*_MODELS, "attention"], [16, 1024, 16384], 5, "gpt2-125m"),
    "train-step": Plan("train-step", _MODELS, [256, 1024], 5, "gpt2-125m"),
}
_QUICK = {
    "operator": Plan("operator", SPARSE_STRUCTURES, [1024], 3),
    "decode": Plan("decode", SPARSE_STRUCTURES, [4096], 3),
    "generate": Plan("generate", [*_MODELS, "attention"], [16, 1024], 3, "tiny"),
    "train-step": Plan("train-step", _MODELS, [256, 1024], 3, "tiny"),
}
# What docs/bench.md shows, each run under both policies.
_ALL = [
    ["--lengths", "1k,4k", "--memory"],
    ["--decode", "--lengths", "4k,64k"],
    ["--generate", "--preset", "tiny"],
    ["--generate", "--preset", "gpt2-125m", "--batch", "1", "--lengths", "16,1k,16k,64k"],
    ["--train-step", "--preset", "tiny", "--lengths", "1k,4k"],
    ["--train-step", "--preset", "gpt2-125m"],
]
_ALL_QUICK = [[*flags, "--quick"] for flags in ([], ["--decode"], ["--generate"], ["--train-step"])]


def chosen_mode(flags: Mapping[Mode, bool]) -> Mode:
    chosen = [mode for mode, flag in flags.items() if flag]
    if len(chosen) > 1:
        raise SettingError(f"expected one of --{', --'.join(flags)}, got --{' and --'.join(chosen)}.")
    return chosen[0] if chosen else "operator"


def check_options(context: typer.Context, mode: Mode) -> None:
    """Options that a mode does not have raise an error, and so do peers that it cannot be compared with."""
    given = {name for name in context.params if str(context.get_parameter_source(name)).endswith("COMMANDLINE")}
    unfit = sorted(given - _OPTIONS[mode] - _EVERYWHERE)
    spelled = {"specs": "patterns", "as_json": "--json", "n": "--n"}
    if unfit:
        names = " or ".join(spelled.get(name, f"--{name.replace('_', '-')}") for name in unfit)
        flag = "the operator" if mode == "operator" else f"--{mode}"
        raise SettingError(f"{flag} does not go with {names}: leave that out.")
    against = list(context.params["against"] or ())
    if mode in _PEERS and against and against not in _PEERS[mode]:
        names = " or ".join(" ".join(peers) for peers in _PEERS[mode])
        raise SettingError(
            f"--{mode} compares with {names} only: expected no other --against, got {' '.join(against)}."
        )


def check_out(out: Path | None) -> None:
    """Before anything is measured: records that cannot be kept, or added to others, would be lost."""
    if out is None:
        return
    if out.suffix != ".jsonl":
        raise SettingError(f"expected --out to be a file that ends in .jsonl, got '{out}'.")
    require_writable(out.parent)
    if out.exists():
        from resolvent.bench.record import read_bench_records

        read_bench_records(out)


def make_plan(
    mode: Mode, specs: list[str] | None, n: list[str] | None, preset: str | None, rounds: int | None, *, quick: bool
) -> Plan:
    """What was asked for, and the defaults of the mode for all else."""
    default = (_QUICK if quick else _DEFAULTS)[mode]
    lengths = sorted({require_length(part) for text in n or () for part in text.split(",")})
    counted = default.rounds if rounds is None else rounds
    if counted < 1:
        raise SettingError(f"expected --rounds to be at least 1, got {counted}.")
    return Plan(mode, specs or default.patterns, lengths or default.lengths, counted, preset or default.preset)


def apply_wait_policy(policy: str | None) -> None:
    """Where the environment differs from what is asked for, the same command runs in a child with another one."""
    from resolvent.bench.record import wait_policy

    if policy is None or _checked(policy) == wait_policy():
        return
    raise typer.Exit(_run(sys.argv[1:], policy))


def apply_avx2() -> None:
    """Run the same command in a child whose libraries and kernels use AVX2 at most, unless this is such a process."""
    from resolvent.bench.record import AVX2_ALONE, avx2_alone

    if not avx2_alone():
        command = [sys.executable, "-m", "resolvent", *sys.argv[1:]]
        raise typer.Exit(subprocess.run(command, env=os.environ | AVX2_ALONE, check=False).returncode)


def run_all(out: Path | None, policy: str | None, threads: int | None, *, quick: bool) -> None:
    """Every benchmark of the documents under every policy, one after another; their records go into one file."""
    if out is None:
        raise SettingError("--all keeps records: expected --out FILE.jsonl with it, got none.")
    policies = ["plain", "passive"] if policy is None else [_checked(policy)]
    common = ["--out", str(out)] + ([] if threads is None else ["--threads", str(threads)])
    jobs = [(flags, each) for flags in (_ALL_QUICK if quick else _ALL) for each in policies]
    for number, (flags, each) in enumerate(jobs, 1):
        print(f"{number} of {len(jobs)}: resolvent bench {' '.join(flags)} ({each})", file=sys.stderr, flush=True)
        failed = _run(["bench", *flags, *common, "--wait-policy", each], each)
        if failed:
            raise typer.Exit(failed)


def _run(arguments: Sequence[str], policy: str) -> int:
    """Run the command line in a process with the policy; its exit code."""
    from resolvent.bench.record import PLAIN, WAIT_POLICY

    environment = {name: value for name, value in os.environ.items() if name != WAIT_POLICY}
    environment |= {} if policy == PLAIN else {WAIT_POLICY: policy}
    return subprocess.run([sys.executable, "-m", "resolvent", *arguments], env=environment, check=False).returncode


def _checked(policy: str) -> str:
    if policy not in WAIT_POLICIES:
        names = ", ".join(WAIT_POLICIES)
        raise SettingError(f"expected --wait-policy {names}, got '{policy}'.{closest(policy, WAIT_POLICIES)}")
    return policy

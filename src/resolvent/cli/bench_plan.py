"""What benchmarks run unless told otherwise, and benchmarks in other processes: all of them, or other threads."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from resolvent.errors import SettingError, closest
from resolvent.patterns import PAPER_STRUCTURES
from resolvent.patterns.checks import require_length

_SPARSE = [spec for spec in PAPER_STRUCTURES if spec not in ("attention", "local:8", "dense")]
MODELS = ["exponential+cache", "quadratic+cache"]
GPT2 = "gpt2-125m"
WAIT_POLICIES = ("plain", "passive", "active")
# What docs/bench.md shows, each run under both policies.
_ALL = [
    ["operator", "--n", "1k,4k", "--memory"],
    ["decode", "--n", "4k,64k"],
    ["generate", "--preset", "tiny"],
    ["generate", "--preset", "gpt2-125m", "--batch", "1", "--n", "16,1k,16k,64k"],
    ["train-step", "--preset", "tiny", "--n", "1k,4k"],
    ["train-step", "--preset", "gpt2-125m"],
]
_ALL_QUICK = [[mode, "--quick"] for mode in ("operator", "decode", "generate", "train-step")]


@dataclass(frozen=True)
class Plan:
    """What is timed; `preset` is of whole models."""

    patterns: list[str]
    lengths: list[int]
    rounds: int
    preset: str = ""

    def changed(
        self, specs: list[str] | None, n: list[str] | None, rounds: int | None, preset: str | None = None
    ) -> Plan:
        """With what was asked for."""
        lengths = sorted({require_length(part) for text in n or () for part in text.split(",")})
        if rounds is not None and rounds < 1:
            raise SettingError(f"expected --rounds to be at least 1, got {rounds}.")
        return Plan(specs or self.patterns, lengths or self.lengths, rounds or self.rounds, preset or self.preset)

    @property
    def description(self) -> str:
        """For the progress bar."""
        sizes = ", ".join(f"{length:,}" for length in self.lengths)
        what = f"{self.preset} with {len(self.patterns)}" if self.preset else f"{len(self.patterns)}"
        return f"timing {what} patterns on {sizes} tokens"


PLANS = {
    "operator": Plan(_SPARSE, [4096], 7),
    "decode": Plan(_SPARSE, [4096], 7),
    "generate": Plan([*MODELS, "attention"], [16, 1024, 16384], 5, GPT2),
    "train-step": Plan(MODELS, [256, 1024], 5, GPT2),
}
QUICK = {
    "operator": Plan(_SPARSE, [1024], 3),
    "decode": Plan(_SPARSE, [4096], 3),
    "generate": Plan([*MODELS, "attention"], [16, 1024], 3, "tiny"),
    "train-step": Plan(MODELS, [256, 1024], 3, "tiny"),
}


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


def run_all(out: Path, policy: str | None, threads: int | None, *, quick: bool) -> None:
    """Every benchmark of the documents under every policy, one after another; their records go into one file."""
    policies = ["plain", "passive"] if policy is None else [_checked(policy)]
    common = ["--out", str(out)] + ([] if threads is None else ["--threads", str(threads)])
    jobs = [(words, each) for words in (_ALL_QUICK if quick else _ALL) for each in policies]
    for number, (words, each) in enumerate(jobs, 1):
        print(f"{number} of {len(jobs)}: resolvent bench {' '.join(words)} ({each})", file=sys.stderr, flush=True)
        failed = _run(["bench", *words, *common, "--wait-policy", each], each)
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

"""The command that trains one model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from resolvent.cli.display import RunDisplay
from resolvent.cli.session import Session
from resolvent.cli.settings import RunOptions, default_folder
from resolvent.cli.shared import AsJson, app, say
from resolvent.rules import RULES
from resolvent.tasks import Text
from resolvent.train.config_file import ConfigFile
from resolvent.train.record import Record

Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a setting, such as train.steps=500 (repeatable)."),
]


@app.command("train")
def train_model(
    task: Annotated[
        str | None,
        typer.Argument(
            metavar="TASK",
            help="copy, recall, multihop, markov, or text with --corpus; settings may follow, as in markov:k=8; "
            "optional if --config names it.",
        ),
    ] = None,
    *,
    config_file: Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="FILE",
            help="TOML file of settings, such as the config.toml of a run; options override it.",
        ),
    ] = None,
    patterns: Annotated[
        list[str] | None,
        typer.Option(
            "--pattern", help="Pattern of every layer; repeat for one per layer.  \\[default: exponential+cache]"
        ),
    ] = None,
    rule: Annotated[
        str | None,
        typer.Option(help=f"How A and B are parameterized: {', '.join(RULES)}, with options.  \\[default: softmax]"),
    ] = None,
    corpus: Annotated[Path | None, typer.Option(help="Folder of a prepared text; see 'resolvent data'.")] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            help="Initial settings. Tasks: smoke, small \\[default], large, paper; markov: those of 'study "
            "incontext'. Text: quick \\[default], laptop, gpt2-125m, gpt2-355m, gpt2-775m (exactly the paper's "
            "settings), recommended-125m, recommended-355m, recommended-775m."
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed for weights and data.  \\[default: 0]")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run: record, metrics, checkpoint, model.  \\[default: runs/NAME]")
    ] = None,
    start: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="MODEL",
            help="Fine-tune: start from the weights, patterns and sizes of this run, model or checkpoint, with a new "
            "optimizer.",
        ),
    ] = None,
    changes: Changes = None,
    yes: Annotated[bool, typer.Option("--yes", help="Train even if it takes more memory than is free.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train one model. If interrupted, rerun the same command to resume exactly.

    Ctrl-C and SIGTERM finish the step, write a checkpoint and print the command
    that resumes; a second one stops at once. The same command with a larger
    train.steps extends a run: from there on the learning rate follows the
    schedule of the longer run.

    Example: resolvent train text --corpus out/text/wikitext2-bytes --pattern quadratic+cache --out out/first
    """
    from resolvent.train.processes import process_rank

    options = RunOptions(task, patterns or (), rule, corpus, preset, seed, changes or (), start)
    file = ConfigFile(Path(), None, {}) if config_file is None else ConfigFile.read(config_file)
    config = options.config(file)
    if out is None:
        out, reason = default_folder(config, options.preset_name(file))
        say(f"{reason}: this one is {out}" if reason else f"run: {out}")
    session = Session(config, out, yes=yes)
    finished = session.is_finished()
    first = process_rank() == 0  # of several processes, one shows and prints
    with RunDisplay() as display:
        record = session.train(display)
    if not first:
        return
    if as_json:
        print(json.dumps(record.to_dict(), indent=2))
    else:
        print(f"{config.model.pattern_label} on {config.task.name}: {_summary(record)}")
        if isinstance(config.task, Text):
            print(_utilization(record))
    say(f"{out} was finished before: nothing was trained" if finished else f"finished: {out}")


def _summary(record: Record) -> str:
    speed = f"{record.tokens_per_second:,.0f} tokens/s"
    return f"{record.evaluation}, after {record.steps:,} steps in {record.seconds:.0f} s ({speed})"


def _utilization(record: Record) -> str:
    """The multiply-adds that the model needs, forward and twice that backward, against matrix products measured now."""
    from resolvent.bench.machine import measure_machine
    from resolvent.model import LanguageModel
    from resolvent.train.processes import default_device

    config = record.config
    madds = LanguageModel.shape_only(config.model).profile(config.task.longest).madds_per_token
    speed = 6 * madds * record.tokens_per_second / 1e9
    if default_device().type != "cpu":  # the CPU is what is measured
        return f"{speed:,.1f} GFLOP/s"
    peak = measure_machine(config.train.threads).matmul_gflops
    return f"{speed:,.1f} GFLOP/s, {100 * speed / peak:.0f} % of this machine's matmul peak ({peak:,.0f} GFLOP/s)"

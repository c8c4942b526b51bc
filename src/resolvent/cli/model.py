"""Commands about models: describe one, and inspect a checkpoint."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from resolvent.cli.models import RunFolder, TokenizerName
from resolvent.cli.shared import AsJson, Length, app, parse_length, progress, say_written
from resolvent.errors import SettingError
from resolvent.rules import RULES

if TYPE_CHECKING:
    from resolvent.model import ModelConfig
    from resolvent.model.training_cost import TrainingCost
    from resolvent.train import RunConfig


@app.command("model")
def describe_model(
    name: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="tiny, synthetic-4m, gpt2-125m, gpt2-355m or gpt2-775m; the folder of a run or of a saved model; or a "
            "checkpoint.",
        ),
    ],
    *,
    specs: Annotated[
        list[str] | None, typer.Option("--pattern", help="Pattern of all layers; repeat for one per layer.")
    ] = None,
    rule: Annotated[
        str | None,
        typer.Option(help=f"How A and B are parameterized: {', '.join(RULES)}, with options.  \\[default: softmax]"),
    ] = None,
    n: Length = 1024,
    save: Annotated[Path | None, typer.Option(help="Save the untrained model to this folder.")] = None,
    seed: Annotated[int, typer.Option(help="Seed for the initial weights.")] = 0,
    train_step: Annotated[
        bool, typer.Option("--train-step", help="Time a training step on n tokens, also with attention.")
    ] = False,
    decode: Annotated[
        int | None,
        typer.Option(
            parser=parse_length, metavar="TOKENS", help="Decode this many tokens one by one: time and memory per token."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Describe a model without training it: parameters, cost, cache, hops, and what training would take.

    Memory and time of training are a model of them, by arithmetic: on GPUs at an
    assumed share of their peak. Nothing is measured without --train-step.

    The gpt2 presets are the paper's models: the GPT-2 architecture with rotary
    position embeddings.
    """
    from resolvent.model import LanguageModel
    from resolvent.model.training_cost import gpu_seconds, training_cost

    config, run = _settings(name)
    replace: Callable[..., ModelConfig] = dataclasses.replace  # the config checks its values
    config = replace(config, **({"pattern": specs if len(specs) > 1 else specs[0]} if specs else {}),
                     **({} if rule is None else {"rule": rule}))  # fmt: skip
    model = LanguageModel.seeded(config, seed) if save else LanguageModel.shape_only(config)
    profile = model.profile(n)
    content: dict[str, object] = {"preset": name, "config": config.to_dict(), "profile": profile.to_dict()}
    cost = training_cost(config, profile)
    tokens, reason = _tokens(name, run, cost)
    content["training"] = cost.to_dict() | {"gpu_seconds": gpu_seconds(cost.flops_per_token * tokens)}
    text = [f"{name} {profile}", _training_text(tokens, reason, cost)]
    if train_step:
        from resolvent.bench.models import training_step
        from resolvent.report import tables

        with progress(f"training step on {n:,} tokens", 2) as advance:
            steps = []
            for timed in (config, replace(config, pattern="attention", rule="softmax")):
                steps.append(training_step(timed, n, seed))
                advance()
        content["training_steps"] = [step.to_dict() for step in steps]
        text += map(tables.training_step, steps)
    if decode is not None:
        from resolvent.bench.models import long_text
        from resolvent.report import tables

        with progress(f"decoding {decode:,} tokens", decode) as advance:
            decoded = long_text(config, decode, seed, advance)
        content["decode"] = decoded.to_dict()
        text.append(tables.long_text(decoded))
    print(json.dumps(content, indent=2) if as_json else "\n".join(text))
    if save is not None:
        say_written(model.save(save))


def _settings(name: str) -> tuple[ModelConfig, RunConfig | None]:
    """Of a preset, or of a model in a folder or a checkpoint: then also those of its run, if they are known."""
    from resolvent.model import preset
    from resolvent.model.config import PRESETS
    from resolvent.train.model_source import open_model

    if name in PRESETS or not (Path(name).exists() or os.sep in name):
        return preset(name), None
    source = open_model(name)
    return source.config, source.run


def _tokens(name: str, run: RunConfig | None, cost: TrainingCost) -> tuple[int, str]:
    """How many tokens it is trained on, and why as many: those of its run, the paper's, or 20 for each parameter."""
    from resolvent.studies.language.presets import PRESETS
    from resolvent.train.plan import tokens_between

    if run is not None:
        return round(tokens_between(run, 0, run.train.steps)), f"{run.train.steps:,} steps, those of its run"
    if name in PRESETS:
        train, context = PRESETS[name].train, PRESETS[name].context
        return train.steps * train.batch * context, f"{train.steps:,} steps of {train.batch} × {context:,}, the paper's"
    return 20 * cost.parameters, "20 for each parameter, Chinchilla's rule"


def _training_text(tokens: int, reason: str, cost: TrainingCost) -> str:
    """What training takes, as rows below those of the profile."""
    from resolvent.model.training_cost import GPUS, UTILIZATION, gpu_seconds
    from resolvent.train.plan import in_bytes, in_time

    state, each = in_bytes(cost.state_bytes), in_bytes(cost.activation_bytes)
    rows = [
        ("memory", f"{state} for weights, gradients and AdamW's moments; {each} for each sequence at once (float32)"),
        ("FLOPs", f"{cost.flops_per_token:.3g} per token; {cost.flops_per_token * tokens:.2g} for {tokens:,} tokens "
                  f"({reason})"),
    ]  # fmt: skip
    for gpu, seconds in gpu_seconds(cost.flops_per_token * tokens).items():
        peak = f"{GPUS[gpu].peak / 1e12:,.0f} TFLOP/s of bfloat16"
        rows.append((gpu, f"{in_time(seconds)} for as many, at {UTILIZATION:.0%} of {peak}"))
    lines = [f"  {label:14} {value}" for label, value in rows]
    return "\n".join(["training, estimated; the share of the peak is assumed, and lower without fused kernels", *lines])


@app.command("inspect")
def inspect_model(
    run: RunFolder,
    *,
    text: Annotated[str, typer.Option(help="Input text.")] = "to be or not to be",
    tokenizer: TokenizerName = None,
    tokens: Annotated[str | None, typer.Option(help="Token ids instead of a text, such as 17,4,256.")] = None,
    layer: Annotated[int, typer.Option(help="Layer of the figure, counted from 0.")] = 0,
    head: Annotated[int, typer.Option(help="Head of the figure, counted from 0.")] = 0,
    plot: Annotated[Path | None, typer.Option(help="Write a figure of A, B and T, up to 4,096 tokens.")] = None,
    as_json: AsJson = False,
) -> None:
    """Inspect a model on a text: gates, row sums, hops, and a figure of A, B and T.

    |T1 - 1|: how far the rows of T = (I - B)^-1 A are from summing to one.
    ‖(I-B)⁻¹‖: how much feedback can amplify. Feedback: the mean number of
    feedback steps between an input and an output.
    """
    from resolvent.model.inspection import inspect
    from resolvent.report import figures, mixing
    from resolvent.train.model_source import open_model

    if tokens is not None and not all(token.strip().isdigit() for token in tokens.split(",")):
        raise SettingError(f"expected --tokens as integers such as 17,4,256, got '{tokens}'.")
    trained = open_model(run)
    if tokens is None:
        vocabulary = trained.tokenizer(tokenizer)
        ids = vocabulary.encode(text).tolist()
        labels = [_label(vocabulary.decode([token]), token) for token in ids]
    else:
        ids = [int(token) for token in tokens.split(",")]
        labels = [str(token) for token in ids]
    inspection = inspect(trained.load(), ids, layer, head)
    if as_json:
        print(json.dumps([layer.to_dict() for layer in inspection.layers], indent=2))
    else:
        Console().print(mixing.diagnostics_table(inspection.layers))
    if plot is not None:
        figure = mixing.mixing_figure(*inspection.matrices(), inspection.spectrum, labels, inspection.title)
        say_written(figures.save(figure, plot))


def _label(text: str, token: int) -> str:
    """A token at an axis: spaces are visible, what cannot be printed is its id."""
    return text.replace(" ", "␣") if text.isprintable() and "\ufffd" not in text else str(token)

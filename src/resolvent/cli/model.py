"""Commands about models: what one costs, and what goes on inside."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from resolvent.cli.shared import AsJson, Length, Rule, app, progress, say_written


@app.command("model")
def describe_model(
    name: Annotated[str, typer.Argument(metavar="PRESET", help="tiny, synthetic-4m, gpt2-125m, gpt2-355m, gpt2-775m.")],
    specs: Annotated[
        list[str] | None, typer.Option("--pattern", help="Pattern of every layer; repeat it for one per layer.")
    ] = None,
    rule: Rule = "softmax",
    n: Length = 1024,
    save: Annotated[Path | None, typer.Option(help="Write the model, untrained, into this folder.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the weights it starts with.")] = 0,
    train_step: Annotated[
        bool, typer.Option("--train-step", help="Time one step of training on n tokens, and the same with attention.")
    ] = False,
    decode: Annotated[
        int | None, typer.Option(metavar="TOKENS", help="Decode so many tokens one by one: time and memory over them.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Parameters, cost, cache and hops of a whole model, without training it.

    The gpt2 presets are the paper's models: GPT-2's shape with rotary positions.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from resolvent.model import LanguageModel, preset

    changes: dict[str, Any] = {"coefficients": rule}
    if specs:
        changes["pattern"] = specs if len(specs) > 1 else specs[0]
    config = preset(name, **changes)
    model = LanguageModel.seeded(config, seed) if save else LanguageModel.shape_only(config)
    profile = model.profile(n)
    content: dict[str, Any] = {"preset": name, "config": config.to_dict(), "profile": profile.to_dict()}
    text = [f"{name} {profile}"]
    if train_step:
        from resolvent.bench.models import training_step
        from resolvent.report import tables

        with progress(f"one step of training on {n:,} tokens", 2) as advance:
            steps = []
            for each in (config, preset(name, pattern="attention")):
                steps.append(training_step(each, n, seed).to_dict())
                advance()
        content["training_steps"] = steps
        text += [tables.training_step(step) for step in steps]
    if decode is not None:
        from resolvent.bench.models import long_text
        from resolvent.report import tables

        with progress(f"decoding {decode:,} tokens", decode) as advance:
            found = long_text(config, decode, seed, advance).to_dict()
        content["decode"] = found
        text.append(tables.long_text(found))
    print(json.dumps(content, indent=2) if as_json else "\n".join(text))
    if save is not None:
        say_written(model.save(save))


@app.command("inspect")
def inspect_model(
    checkpoint: Annotated[Path, typer.Argument(metavar="CHECKPOINT", help="A model's folder, as `save` writes it.")],
    text: Annotated[
        str, typer.Option(help="What the model reads, as bytes (vocabulary of 256).")
    ] = "to be or not to be",
    tokens: Annotated[str | None, typer.Option(help="Token numbers instead of a text: 17,4,256.")] = None,
    layer: Annotated[int, typer.Option(help="Layer of the figure, from 0.")] = 0,
    head: Annotated[int, typer.Option(help="Head of the figure, from 0.")] = 0,
    plot: Annotated[Path | None, typer.Option(help="Write a figure of A, B and T, up to 4,096 tokens.")] = None,
    as_json: AsJson = False,
) -> None:
    """Look inside a model while it reads a text: gates, row sums, hops, and a figure of A, B and T.

    |T1 - 1|: how far the rows of (I - B)^-1 A are from summing to one. ‖(I-B)⁻¹‖: how much feedback can amplify.
    Fed back: how often, on average, what reaches a token was fed back on its way.
    """
    from resolvent.model.inspection import inspect
    from resolvent.report import figures, mixing

    if tokens is not None and not all(part.strip().isdigit() for part in tokens.split(",")):
        raise ValueError(f"expected --tokens as whole numbers such as 17,4,256, got '{tokens}'.")
    view = inspect(checkpoint, text if tokens is None else [int(t) for t in tokens.split(",")], layer, head)
    if as_json:
        print(json.dumps([found.to_dict() for found in view.layers], indent=2))
    else:
        Console().print(mixing.diagnostics_table([found.to_dict() for found in view.layers]))
    if plot is not None:
        figure = mixing.mixing_figure(*view.matrices(), view.spectrum, view.tokens, view.title)
        say_written(figures.save(figure, plot))

"""Commands about one run: train a model, evaluate it, let it write."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from resolvent.cli.shared import AsJson, Rule, app, progress, say_written
from resolvent.patterns.errors import closest

if TYPE_CHECKING:
    from resolvent.train import Progress, RunConfig

Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a setting, such as train.steps=500; repeat."),
]
Run = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run, or of a saved model.")]
EVERY = 15.0  # seconds between lines where there is no terminal


@app.command("train")
def train_a_model(
    task: Annotated[str, typer.Argument(metavar="TASK", help="copy, recall, multihop, or text with --corpus.")],
    spec: Annotated[str, typer.Option("--pattern", help="Pattern of every layer.")] = "exponential+cache",
    rule: Rule = "softmax",
    corpus: Annotated[Path | None, typer.Option(help="Folder of a prepared text; see 'resolvent data'.")] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            help="Settings to begin with. Tasks: smoke, small (if not given), paper. Text: quick (if not given), "
            "laptop, gpt2-125m, gpt2-355m, gpt2-775m."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of weights and data.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder of the run: record, metrics, checkpoint, model.")] = None,
    changes: Changes = None,
    tensorboard: Annotated[
        Path | None, typer.Option(help="Also write the metrics for TensorBoard into this folder.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train one model. Killed, the same command goes on from the last checkpoint, exactly.

    Such as: resolvent train text --corpus out/text/wikitext2-bytes --pattern quadratic+cache --out out/first
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from resolvent.train import train
    from resolvent.train.board import Board
    from resolvent.train.processes import rank_here

    config = _config(task, spec, rule, corpus, preset, seed).changed(changes or [])
    line, first = _Line(), rank_here() == 0
    board = Board(tensorboard) if tensorboard is not None and first else None

    def show(p: Progress) -> None:
        known = "".join(f"  {name} {value:.3f}" for name, value in p.found.items())
        speed = f"{p.tokens_per_second:,.0f} tokens/s"
        line.show(f"step {p.step:,}/{p.steps:,}  loss {p.loss:.3f}{known}  {speed}", p.step / p.steps)
        if board is not None:
            board.write(p)

    if task == "text" and first:
        print(_plan(config), file=sys.stderr)
    found = train(config, out, show)
    line.end()
    if not first:  # of several processes, one speaks
        return
    if as_json:
        print(json.dumps(found, indent=2))
    else:
        print(f"{_spelled(config.model.pattern)} on {task}: {summary(found)}")
        if task == "text":
            print(_use_of_the_machine(found))
    if out is not None:
        say_written(out)


def _config(task: str, spec: str, rule: str, corpus: Path | None, preset: str | None, seed: int) -> RunConfig:
    from resolvent.studies import language, table1
    from resolvent.tasks import TASKS

    known = [*TASKS, "text"]
    if task not in known:
        raise ValueError(f"unknown task '{task}': expected {', '.join(known)}.{closest(task, known)}")
    if task == "text":
        if corpus is None:
            raise ValueError("expected --corpus, the folder of a prepared text: see 'resolvent data prepare --help'.")
        return language.run_config(language.preset_of(preset or "quick"), str(corpus), spec, seed, rule)
    if corpus is not None:
        raise ValueError(f"{task} makes its own sequences: --corpus goes with 'resolvent train text'.")
    size = table1.preset_of(preset or "small", [task])
    assignments = [f"model.coefficients={rule}"] if rule != "softmax" else []
    return table1.run_config(size, task, spec, seed).changed(assignments)


def _plan(config: RunConfig) -> str:
    """How large the model is, and how much it will read."""
    from resolvent.model import LanguageModel
    from resolvent.train.text import Text

    text, how = config.make_task(), config.train
    assert isinstance(text, Text)
    size, tokens = LanguageModel.shape_only(config.model).parameter_count(), how.batch * text.context
    times = how.steps * tokens / text.opened.counts["train"].tokens
    return (
        f"{size:,} parameters; {how.steps:,} steps of {how.batch} × {text.context:,} = {tokens:,} tokens, "
        f"{times:.2f} times the text"
    )


def summary(found: dict[str, Any]) -> str:
    """A record in one line."""
    e = found["evaluation"]
    if "perplexity" in e:
        said = f"perplexity {e['perplexity']:.2f}, {e['bits_per_byte']:.3f} bits per byte on {e['split']}"
    else:
        said = f"accuracy {e['accuracy']:.4f} per token, {e['sequence_accuracy']:.4f} per sequence"
    speed = f"{found['tokens'] / max(found['seconds'], 1e-9):,.0f} tokens/s"
    return f"{said}, after {found['steps']:,} steps in {found['seconds']:.0f} s ({speed})"


def _spelled(given: Any) -> str:
    return given if isinstance(given, str) else " | ".join(map(_spelled, given))


def _use_of_the_machine(found: dict[str, Any]) -> str:
    """Multiply-adds that the model needs, forward and twice that backward, against matrix products measured now."""
    from resolvent.bench.machine import measure_machine
    from resolvent.model import LanguageModel, ModelConfig
    from resolvent.train.processes import device_here

    model = LanguageModel.shape_only(ModelConfig.from_dict(found["config"]["model"]))
    madds = model.profile(found["config"]["task"]["context"]).madds_per_token
    speed = 6 * madds * found["tokens"] / max(found["seconds"], 1e-9) / 1e9
    if device_here().type != "cpu":  # which is what is measured
        return f"{speed:,.1f} GFLOP/s"
    most = measure_machine(found["config"]["train"]["threads"]).matmul_gflops
    return f"{speed:,.1f} GFLOP/s, {speed / most:.0%} of the {most:,.0f} that matrix products reach here"


@app.command("evaluate")
def evaluate_a_model(
    run: Run,
    corpus: Annotated[Path, typer.Option(help="Folder of a prepared text.")],
    split: Annotated[str, typer.Option(help="train, validation or test.")] = "validation",
    context: Annotated[
        int | None, typer.Option(help="Tokens of each window; if not given, as many as the run was trained on, or 256.")
    ] = None,
    stride: Annotated[
        int | None,
        typer.Option(help="Windows so far apart, the last STRIDE targets of each count; else they do not overlap."),
    ] = None,
    batch: Annotated[int, typer.Option(help="Windows at once.")] = 8,
    as_json: AsJson = False,
) -> None:
    """Perplexity and bits per byte of a model on a text."""
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from resolvent.model import LanguageModel
    from resolvent.train.perplexity import on_text
    from resolvent.train.processes import device_here
    from resolvent.train.text import Text

    model, trained = LanguageModel.load(_model_folder(run), device=device_here()), _config_of(run)
    text = Text(str(corpus), int(trained["task"].get("context", 256)) if context is None else context)
    check_tokenizer(run, text.tokenizer)
    precision = trained["train"].get("precision", "float32")
    with progress("evaluating", len(text.windows(batch, split, stride))) as advance:
        found = on_text(model, text, batch, split=split, stride=stride, precision=precision, advance=advance)
    if as_json:
        print(json.dumps(found, indent=2))
    else:
        way = "windows that do not overlap" if stride is None else f"windows {stride:,} apart"
        print(f"perplexity {found['perplexity']:.3f}, {found['bits_per_byte']:.4f} bits per byte, {found['tokens']:,} "
              f"tokens of {split}, contexts of {text.context:,}, {way}")  # fmt: skip


@app.command("generate")
def generate_text(
    run: Run,
    prompt: Annotated[str, typer.Option(help="What the text begins with.")] = "The ",
    tokens: Annotated[int, typer.Option(help="How many more tokens.")] = 200,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token each time.")] = 0.8,
    top_k: Annotated[int | None, typer.Option(help="Draw among the k likeliest tokens.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Draw among the fewest tokens that have probability p.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the draws.")] = 0,
    tokenizer: Annotated[
        str | None, typer.Option(help="gpt2 or bytes; if not given, that of the text the run was trained on.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Let a model go on from a prompt, token by token; then say how fast, and how large its cache was."""
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from resolvent.model import LanguageModel
    from resolvent.text import tokenizer as make_tokenizer
    from resolvent.train.processes import device_here

    model = LanguageModel.load(_model_folder(run), device=device_here())
    words = make_tokenizer(
        tokenizer or _config_of(run)["task"].get("tokenizer") or ("gpt2" if model.config.vocab_size > 300 else "bytes")
    )
    given = words.encode(prompt).tolist()
    if not given:
        raise ValueError("expected a prompt of at least one character.")
    begin, made, shown = time.perf_counter(), list[int](), ""
    if not as_json:
        print(prompt, end="", flush=True)
    for [token] in model.stream([given], tokens, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed,
                                stop=words.end_of_text):  # fmt: skip
        made.append(int(token or 0))
        text = words.decode(made)
        if not as_json and not text.endswith("\ufffd"):  # a character may take several tokens
            print(text[len(shown) :], end="", flush=True)
            shown = text
    seconds = time.perf_counter() - begin
    cache = model.make_cache(1, len(given) + tokens).nbytes
    if as_json:
        print(json.dumps({"prompt": prompt, "text": words.decode(made), "tokens": len(made), "seconds": seconds,
                          "cache_bytes": cache}, indent=2))  # fmt: skip
    else:
        print(words.decode(made)[len(shown) :])
        print(f"{len(made):,} tokens, {len(made) / seconds:,.0f} tokens/s, cache of {cache:,} bytes", file=sys.stderr)


def _model_folder(run: Path) -> Path:
    return run / "model" if (run / "model" / "config.json").exists() else run


def _config_of(run: Path) -> dict[str, dict[str, Any]]:
    """How a run was trained and on what, if the folder says so."""
    path = run / "run.json"
    if not path.exists():
        return {"task": {}, "train": {}}
    from resolvent.train import record

    return dict(record.read(path)["config"])


def check_tokenizer(run: Path, other: str) -> None:
    """A model of one tokenizer has nothing to say about the tokens of another."""
    own = _config_of(run)["task"].get("tokenizer", other)
    if own != other:
        raise ValueError(f"{run} was trained on tokens of '{own}', and the text has those of '{other}': "
                         f"prepare it again with --tokenizer {own}.")  # fmt: skip


class _Line:
    """A line that is written over on a terminal, and now and then a new one elsewhere."""

    def __init__(self) -> None:
        self.shown, self.begin, self.first = 0.0, time.monotonic(), -1.0

    def show(self, text: str, share: float) -> None:
        now, live = time.monotonic(), sys.stderr.isatty()
        if self.first < 0:  # a run that goes on has done some of it before
            self.begin, self.first = now, share
        if now - self.shown < (0.2 if live else EVERY):
            return
        self.shown = now
        left = (now - self.begin) * (1 - share) / max(share - self.first, 1e-9)
        print(
            f"{text}  {left:.0f} s left" if share > self.first else text,
            file=sys.stderr,
            end="\r" if live else "\n",
            flush=True,
        )

    def end(self) -> None:
        if sys.stderr.isatty():
            print(" " * 100, file=sys.stderr, end="\r")

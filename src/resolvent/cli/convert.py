"""The command that converts models to transformers and back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from resolvent.cli.runs import model_folder, trained_text
from resolvent.cli.shared import app, say_written


@app.command("convert")
def convert_model(
    source: Annotated[Path, typer.Argument(metavar="FROM", help="Folder of a run, of a model, or of transformers.")],
    target: Annotated[Path, typer.Argument(metavar="TO", help="New folder.")],
    *,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            help="Tokenizer to save beside a model for transformers: gpt2 or bytes.  "
            "\\[default: that of the text it was trained on]"
        ),
    ] = None,
) -> None:
    """Convert a model for Hugging Face transformers, or back; the weights stay the same to the last bit.

    A folder that `resolvent train` or `save` wrote becomes one that
    AutoModelForCausalLM loads, and the other way round.
    """
    from resolvent.hf import convert
    from resolvent.hf.tokenizer import fast_tokenizer
    from resolvent.hf.versions import without_progress_bars

    text = trained_text(source)
    name = tokenizer or (None if text is None else text.tokenizer)
    vocabulary = None if name is None else fast_tokenizer(name)  # or an error, before anything is written
    settings = {} if vocabulary is None else {"eos_token_id": vocabulary.eos_token_id}
    with without_progress_bars():
        written = convert(model_folder(source), target, **settings)
    if vocabulary is not None and (written / "generation_config.json").exists():
        vocabulary.save_pretrained(written)
    say_written(written)

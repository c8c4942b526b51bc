"""The command that converts models to transformers and back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from resolvent.cli.models import TokenizerName
from resolvent.cli.shared import app, say_written


@app.command("convert")
def convert_model(
    source: Annotated[
        Path, typer.Argument(metavar="FROM", help="Folder of a run, of a saved model or of transformers; a checkpoint.")
    ],
    target: Annotated[Path, typer.Argument(metavar="TO", help="New folder.")],
    *,
    tokenizer: TokenizerName = None,
) -> None:
    """Convert a model for Hugging Face transformers, or back; the weights stay the same to the last bit.

    What `resolvent train` or `save` wrote becomes a folder that
    AutoModelForCausalLM loads, with the tokenizer of the text that the model
    was trained on, or the one that is named; and the other way round.
    """
    from resolvent.hf.convert import check_target, from_language_model, is_of_transformers, load, to_language_model
    from resolvent.hf.tokenizer import fast_tokenizer
    from resolvent.hf.versions import without_progress_bars
    from resolvent.train.model_source import open_model

    check_target(target)
    with without_progress_bars():
        if is_of_transformers(source):
            to_language_model(load(source)).save(target)
        else:
            trained = open_model(source)
            known = tokenizer is not None or trained.text is not None
            vocabulary = fast_tokenizer(trained.tokenizer(tokenizer)) if known else None
            settings = {} if vocabulary is None else {"eos_token_id": vocabulary.eos_token_id}
            from_language_model(trained.load(), **settings).save_pretrained(target)
            if vocabulary is not None:
                vocabulary.save_pretrained(target)
    say_written(target)

"""Models as commands take them: the folder of a run, the folder of a model, or a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

RunFolder = Annotated[
    Path, typer.Argument(metavar="MODEL", help="Folder of a run or of a saved model, or a checkpoint of a run.")
]
TokenizerName = Annotated[
    str | None,
    typer.Option(
        "--tokenizer",
        help="gpt2, bytes or the path of a tokenizer.json.  \\[default: that of the text it was trained on]",
    ),
]

"""`python -m resolvent.studies.cell FOLDER PARENT`: run the config in a folder, and leave the record there.

PARENT is the id of the process that started this one; it ends when that one does, however that ends. If another process
is at work on the cell, on any machine that shares its folder, this one waits, and resumes or reads what it leaves.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

from resolvent.fields import as_mapping
from resolvent.files import BusyError
from resolvent.train import RunConfig, train
from resolvent.untrusted import read

_PAUSE = 0.2  # seconds


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_PAUSE)
    os._exit(1)


def run(folder: Path) -> None:
    """Train as the config in the folder says, when no other process does."""
    config = RunConfig.from_dict(as_mapping(read(folder / "config.json"), "the config of a cell"))
    while True:
        try:
            train(config, folder)
            return
        except BusyError:
            time.sleep(_PAUSE)


if __name__ == "__main__":
    threading.Thread(target=_end_with, args=(int(sys.argv[2]),), daemon=True).start()
    run(Path(sys.argv[1]))

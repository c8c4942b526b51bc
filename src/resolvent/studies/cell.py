"""`python -m resolvent.studies.cell FOLDER PARENT`: run the config in a folder, and leave the record there.

PARENT is the id of the process that started this one; it ends when that one does, however that ends.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

from resolvent.fields import as_mapping
from resolvent.train import RunConfig, train
from resolvent.untrusted import read

_PAUSE = 0.2  # seconds


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_PAUSE)
    os._exit(1)


if __name__ == "__main__":
    folder, parent = Path(sys.argv[1]), int(sys.argv[2])
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    train(RunConfig.from_dict(as_mapping(read(folder / "config.json"), "the config of a cell")), folder)

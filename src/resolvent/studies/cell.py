"""`python -m resolvent.studies.cell FOLDER STUDY`: run the config in a folder, and leave the record there.

STUDY is the number of the process that started this one; it ends with that one, however that ends.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path

from resolvent.train import RunConfig, train

_PAUSE = 0.2  # seconds


def _end_with(study: int) -> None:
    while os.getppid() == study:
        time.sleep(_PAUSE)
    os._exit(1)


if __name__ == "__main__":
    folder, study = Path(sys.argv[1]), int(sys.argv[2])
    threading.Thread(target=_end_with, args=(study,), daemon=True).start()
    train(RunConfig.from_dict(json.loads((folder / "config.json").read_text())), folder)

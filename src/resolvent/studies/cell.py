"""`python -m resolvent.studies.cell FOLDER`: run the config in a folder, and leave the record there."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from resolvent.train import RunConfig, train

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    train(RunConfig.from_dict(json.loads((folder / "config.json").read_text())), folder)

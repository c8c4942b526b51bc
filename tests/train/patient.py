"""For torchrun: the command line, which waits to be killed after some checkpoints when it is started first.

`python -m torch.distributed.run … tests/train/patient.py THREADS …`: arguments of `resolvent`. Each process that ends
writes the names of its threads to THREADS and its number.
"""

import os
import sys
import threading
from pathlib import Path
from typing import Any

from resolvent.cli import main
from resolvent.train import checkpoint

LAST = 8  # no checkpoint beyond this step


def write_then_wait(*arguments: Any) -> None:
    write(*arguments)
    if arguments[3].state.step == LAST:
        threading.Event().wait()


if __name__ == "__main__":
    write = checkpoint.write
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        checkpoint.write = write_then_wait
    names = sys.argv.pop(1)
    try:
        main()
    finally:
        threads = [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]
        Path(f"{names}{os.environ['RANK']}").write_text("".join(threads))

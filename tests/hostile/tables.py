"""Tables of reads that take little of a file and much of everything else."""

import base64
import zlib

import numpy as np


def crammed(tokens: int, reads: int) -> str:
    """The spelling of the table in which each token reads the last few, whatever its size."""
    counts = np.minimum(np.arange(tokens), reads)
    distances = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts) + 1
    content = np.concatenate([[tokens], counts, distances]).astype("<u4").tobytes()
    return "explicit:" + base64.urlsafe_b64encode(zlib.compress(content, 9)).decode().rstrip("=")

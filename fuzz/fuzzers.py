"""The fuzzers by name."""

from __future__ import annotations

from fuzz import decoding, layers, mixing, readers, samples, spellings, threads
from fuzz.case import Fuzzer

OPERATOR = Fuzzer(
    "operator",
    {
        "mix": (mixing.mix, 6),
        "solve": (mixing.solve, 2),
        "extend": (decoding.extend, 4),
        "mixer": (layers.mixer, 2),
        "model": (layers.model, 1),
    },
    threads.use_one_thread,
)
FILES = Fuzzer(
    "files",
    {
        "spelling": (spellings.spelling, 6),
        "size": (spellings.size, 1),
        "rule": (spellings.rule, 1),
        "model-config": (readers.model_config, 2),
        "run-config": (readers.run_config, 3),
        "saved-model": (readers.model, 2),
        "checkpoint": (readers.checkpoint, 2),
        "record": (readers.record, 2),
        "bench": (readers.bench, 1),
        "metrics": (readers.metrics, 1),
        "corpus": (readers.corpus, 2),
    },
    samples.make_all,
)

FUZZERS = {fuzzer.name: fuzzer for fuzzer in (OPERATOR, FILES)}

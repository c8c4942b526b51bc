"""Tasks for long contexts, in the style of RULER, made here: a needle in a haystack, and variables to track.

Each text is filled up with sentences that do not matter. What is asked for is among four choices that all occur in the
text, so that a model that only knows what numbers look like is right in one of four.

    needle     The number of Lima is 4821. … The number of Oslo is 7734. … The number of Lima is → 4821
    variables  x = 4821. … y = x. … a = 7734. … z = y. … The value of z is → 4821
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path

from resolvent.files import write_text

CITIES = ("Lima", "Oslo", "Cairo", "Quito", "Hanoi", "Tunis", "Dakar", "Sofia", "Accra", "Minsk", "Turin", "Kyoto")
NAMES = "abcdefghijklmnopqrstuvwxyz"
FILLER = (
    "The river runs to the sea.", "Nobody came to the door.", "It rained until the evening.",
    "A train left the station.", "The garden was quiet.", "Somebody closed the window.",
)  # fmt: skip
_HOPS = 3
Document = dict[str, object]


def needle(rng: random.Random, length: int) -> Document:
    """Four numbers of cities in a text of about so many characters; one is asked for."""
    cities, numbers = rng.sample(CITIES, 4), _numbers(rng)
    facts = [f"The number of {city} is {number}." for city, number in zip(cities, numbers, strict=True)]
    wanted = rng.randrange(4)
    question = f"The number of {cities[wanted]} is"
    return _document(_hidden(rng, facts, length - len(question), keep_order=False), question, numbers, wanted)


def variables(rng: random.Random, length: int) -> Document:
    """Four chains of assignments in a text of about so many characters; the end of one is asked for."""
    names, numbers = rng.sample(NAMES, 4 * (_HOPS + 1)), _numbers(rng)
    chains = [names[i::4] for i in range(4)]
    facts = [f"{chain[0]} = {number}." for chain, number in zip(chains, numbers, strict=True)]
    for hop in range(_HOPS):
        facts += rng.sample([f"{chain[hop + 1]} = {chain[hop]}." for chain in chains], 4)
    wanted = rng.randrange(4)
    question = f"The value of {chains[wanted][-1]} is"
    return _document(_hidden(rng, facts, length - len(question), keep_order=True), question, numbers, wanted)


TASKS: dict[str, Callable[[random.Random, int], Document]] = {"needle": needle, "variables": variables}


def write_tasks(folder: Path, lengths: Sequence[int], *, documents: int = 50, seed: int = 0) -> list[Path]:
    """Write the tasks, at each length in characters, as files for `evaluate`; returns the YAML files."""
    folder.mkdir(parents=True, exist_ok=True)
    return [_write(folder, name, length, documents, seed) for name in TASKS for length in lengths]


def _write(folder: Path, name: str, length: int, documents: int, seed: int) -> Path:
    if length < 400:
        raise ValueError(f"expected texts of at least 400 characters, which facts and question take, got {length}.")
    rng, task = random.Random(f"{name} {length} {seed}"), f"{name}_{length}"
    rows = [json.dumps(TASKS[name](rng, length)) for _ in range(documents)]
    write_text(folder / f"{task}.jsonl", "\n".join(rows) + "\n")
    write_text(folder / f"{task}.yaml", _YAML.format(task=task))
    return folder / f"{task}.yaml"


_YAML = """task: {task}
dataset_path: json
dataset_kwargs:
  data_files:
    test: {task}.jsonl
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{text}}}}"
doc_to_choice: choices
doc_to_target: answer
metric_list:
  - metric: acc
    aggregation: mean
    higher_is_better: true
"""


def _numbers(rng: random.Random) -> list[str]:
    return [str(number) for number in rng.sample(range(1000, 10000), 4)]


def _hidden(rng: random.Random, facts: list[str], length: int, *, keep_order: bool) -> str:
    """Facts among filler, at random positions."""
    sentences: list[str] = []
    left = length - sum(len(fact) + 1 for fact in facts)
    while left > 0:
        sentences.append(rng.choice(FILLER))
        left -= len(sentences[-1]) + 1
    order = facts if keep_order else rng.sample(facts, len(facts))
    positions = sorted(rng.randrange(len(sentences) + 1) for _ in order)
    for position, fact in reversed(list(zip(positions, order, strict=True))):
        sentences.insert(position, fact)
    return " ".join(sentences)


def _document(context: str, question: str, choices: list[str], answer: int) -> Document:
    return {"text": f"{context} {question}", "choices": choices, "answer": answer}

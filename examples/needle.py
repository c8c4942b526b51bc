# %% [markdown]
# # A task for long contexts
#
# What a pattern keeps matters where a fact stands far back. This writes tasks in the style of RULER, as files that
# `resolvent evaluate MODEL --tasks FILE` takes (it needs the extra `tools`): a needle in a haystack, and variables to
# track through three assignments. The answer is among four numbers that all occur in the text, so that a model which
# only knows what numbers look like is right in one of four.

# %%
import json
import random
from pathlib import Path

import resolvent as rv

FOLDER, LENGTH, DOCUMENTS = Path("tasks"), 500, 4  # characters of a text, texts of a task
CITIES = ("Lima", "Oslo", "Cairo", "Quito", "Hanoi", "Tunis", "Dakar", "Sofia", "Accra", "Minsk", "Turin", "Kyoto")
FILLER = ("The river runs to the sea.", "Nobody came to the door.", "It rained until the evening.")

# %% [markdown]
# ## Facts among sentences that do not matter


# %%
def hidden(rng: random.Random, facts: list[str], question: str) -> str:
    """The facts, in order, at random positions of a text of about LENGTH characters, and then the question."""
    sentences = list(facts)
    while len(" ".join([*sentences, question])) < LENGTH:
        sentences.append(rng.choice(FILLER))
    rng.shuffle(sentences)
    ordered = iter(facts)
    return " ".join([*(next(ordered) if sentence in facts else sentence for sentence in sentences), question])


def four_numbers(rng: random.Random) -> list[str]:
    return [str(number) for number in rng.sample(range(1000, 10000), 4)]


def needle(rng: random.Random) -> dict[str, object]:
    cities, numbers, answer = rng.sample(CITIES, 4), four_numbers(rng), rng.randrange(4)
    facts = [f"The number of {city} is {number}." for city, number in zip(cities, numbers, strict=True)]
    text = hidden(rng, facts, f"The number of {cities[answer]} is")
    return {"text": text, "choices": numbers, "answer": answer}


def variables(rng: random.Random) -> dict[str, object]:
    names, numbers, answer = rng.sample("abcdefghijklmnopqrstuvwxyz", 16), four_numbers(rng), rng.randrange(4)
    chains = [[number, *names[i::4]] for i, number in enumerate(numbers)]
    facts = [f"{chain[i + 1]} = {chain[i]}." for i in range(4) for chain in rng.sample(chains, 4)]
    text = hidden(rng, facts, f"The value of {chains[answer][-1]} is")
    return {"text": text, "choices": numbers, "answer": answer}


print(needle(random.Random(0))["text"])

# %% [markdown]
# ## Files for lm-eval

# %%
YAML = """task: {task}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {task}.jsonl}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{text}}}}"
doc_to_choice: choices
doc_to_target: answer
metric_list: [{{metric: acc, aggregation: mean, higher_is_better: true}}]
"""

FOLDER.mkdir(exist_ok=True)
for make in (needle, variables):
    task, rng = f"{make.__name__}_{LENGTH}", random.Random(f"{make.__name__} {LENGTH}")
    rows = [json.dumps(make(rng)) for _ in range(DOCUMENTS)]
    (FOLDER / f"{task}.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    (FOLDER / f"{task}.yaml").write_text(YAML.format(task=task), encoding="utf-8")
    print(FOLDER / f"{task}.yaml")

# %% [markdown]
# ## What can be kept of such a text
#
# As bytes it is 500 tokens. Attention keeps all of them; the others have as many slots as they have, and what they do
# not keep must share a state (*congestion*).

# %%
rv.compare("attention", "local:32", "first-order", "exponential+cache", "quadratic+cache", n=LENGTH)

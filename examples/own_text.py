# %% [markdown]
# # Training on your own text
#
# From files to a model that writes, in Python; the commands `resolvent data prepare`, `train` and `generate` do the
# same. As text serve the sources of Python's standard library, which everybody has: put your own files in `SOURCES`.

# %%
import json
from pathlib import Path

import resolvent as rv
from resolvent.tasks import Text
from resolvent.text import prepare, tokenizer
from resolvent.train import Progress, RunConfig, TrainConfig, train

SOURCES = sorted(Path(json.__file__).parent.parent.glob("[a-d]*.py"))
FOLDER = Path("out/own-text")

# %% [markdown]
# ## Tokens on disk
#
# Any UTF-8 text will do. `bytes` needs no vocabulary; `gpt2` has 50,257 tokens. Validation and test are held out.

# %%
corpus = prepare(SOURCES, FOLDER / "corpus", "bytes")
print(corpus)

# %% [markdown]
# ## Settings are values
#
# A model, a task, and how to train: together they decide every number of a run. 150 steps take seconds and show that it
# works; with 3,000 the model is worth reading.

# %%
config = RunConfig(
    rv.preset("tiny", vocab_size=corpus.vocab_size, layers=2, dim=64, heads=2, pattern="quadratic+cache"),
    Text(str(corpus.folder), context=128),
    TrainConfig(steps=150, warmup=15, learning_rate=4e-3, batch=8, eval_every=50, solved=None, threads=2),
)
model = rv.LanguageModel.shape_only(config.model)
model.profile(128)

# %% [markdown]
# ## Training
#
# The folder holds record, metrics, checkpoint and model. An interrupted run resumes from there, bit for bit; a finished
# one is not trained again.


# %%


def show(progress: Progress) -> None:
    if progress.step % 50 == 0:
        print(f"step {progress.step}: loss {progress.loss:.2f} nats per byte")


record = train(config, FOLDER / "run", show)
record

# %% [markdown]
# ## Writing

# %%
model = rv.LanguageModel.load(FOLDER / "run" / "model")
vocabulary = tokenizer("bytes")
prompt = vocabulary.encode("def ").tolist()
[written] = model.generate([prompt], 120, temperature=0.7, seed=1)
print(vocabulary.decode([*prompt, *written]))

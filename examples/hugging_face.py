# %% [markdown]
# # Hugging Face: make a model, swap attention in another
#
# `resolvent.hf` has models that the tools of Hugging Face take, and replaces the attention of models that exist. It
# needs transformers: `pip install 'transformers>=5.22,<6'`. Everything below runs in seconds and downloads nothing: as
# text serve the sources of Python's standard library, byte by byte.

# %%
import json
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, StaticCache
from transformers.utils import logging

from resolvent.hf import ResolventConfig, ResolventForCausalLM, replace_attention
from resolvent.hf.tokenizer import fast_tokenizer

logging.disable_progress_bar()
tokenizer = fast_tokenizer("bytes")
text = "".join(path.read_text(encoding="utf-8") for path in sorted(Path(json.__file__).parent.glob("*.py")))
tokens = torch.tensor(tokenizer(text).input_ids)


def batch(step: int, size: int = 8, length: int = 96) -> Tensor:
    """The same tokens for the same step."""
    starts = torch.randint(len(tokens) - length, (size,), generator=torch.Generator().manual_seed(step))
    return torch.stack([tokens[start : start + length] for start in starts])


# %% [markdown]
# ## A model
#
# The settings are those of `rv.ModelConfig`: a pattern and a rule, for all layers or one for each. The model returns a
# loss for labels, as every model of transformers does, so that `Trainer` takes it; here the loop is written out.


# %%
def train(model: nn.Module, steps: int, learning_rate: float = 3e-3) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
    for step in range(steps):
        ids = batch(step)
        loss = model(input_ids=ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 40 == 0 or step == steps - 1:
            print(f"step {step:3}: loss {loss.item():.2f} nats per byte")


torch.manual_seed(0)
config = ResolventConfig(
    vocab_size=len(tokenizer),
    layers=2,
    dim=64,
    heads=2,
    pattern="exponential+cache",
    eos_token_id=tokenizer.eos_token_id,
)
model = ResolventForCausalLM(config)
train(model, 81)

# %% [markdown]
# ## Generate, save, load
#
# `generate` samples, searches beams and takes padded batches. Its cache is that of the pattern: made for 100,000
# tokens, it is as large as `profile` promises. A saved folder is loaded by the Auto classes.

# %%
model.save_pretrained("out/hugging-face")
tokenizer.save_pretrained("out/hugging-face")
model = AutoModelForCausalLM.from_pretrained("out/hugging-face")
prompt = tokenizer(["def ", "    return "], padding=True, return_tensors="pt")
written = model.generate(**prompt, max_new_tokens=40, do_sample=True, temperature=0.5)
print(*tokenizer.batch_decode(written, skip_special_tokens=True), sep="\n---\n")

cache = StaticCache(config=model.config, max_cache_len=100_000)
model.generate(prompt.input_ids[1:], past_key_values=cache, max_new_tokens=10, do_sample=False)
print(f"\ncache for 100,000 tokens: {sum(layer.nbytes for layer in cache.layers):,} bytes")
model.model.stack.profile("100k")

# %% [markdown]
# ## Swap the attention of a model that exists
#
# The teacher is a small GPT-2; with weights of your own it would be `GPT2LMHeadModel.from_pretrained(...)`, or a Llama.
# In the student, queries, keys, values and outputs of attention become those of A; B is new, and its gates are closed.
# Where A reads all the past, the student *is* the teacher.

# %%
torch.manual_seed(0)
shape = {"n_embd": 64, "n_layer": 2, "n_head": 2, "n_positions": 128, "initializer_range": 0.07}
no_dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
teacher = GPT2LMHeadModel(
    GPT2Config(vocab_size=len(tokenizer), bos_token_id=256, eos_token_id=256, **shape, **no_dropout)
)
teacher.loss_type = "ForCausalLM"  # transformers looks for it in the name of the class, and warns of GPT-2's
train(teacher, 81)
teacher.eval()

ids = batch(1000)
with torch.no_grad():
    same = replace_attention(teacher, "attention/exponential+cache")
    print(f"largest difference of logits: {(same(ids).logits - teacher(ids).logits).abs().max():.1e}")

# %% [markdown]
# ## Distil
#
# A sparser pattern starts from attention to the few positions that it reads, and learns from the teacher's predictions
# what feedback must bring from the others. Gates that start at zero have a way to go: they take larger steps.

# %%
student = replace_attention(teacher, "exponential+cache").train()
gates = [layer.feedback.gate.opening for layer in student.mixing_layers()]
others = [p for p in student.parameters() if all(p is not gate for gate in gates)]
optimizer = torch.optim.AdamW([{"params": others}, {"params": gates, "lr": 1e-2, "weight_decay": 0.0}], lr=1e-3)
curve = []
for step in range(81):
    ids = batch(2000 + step)
    with torch.no_grad():
        target = teacher(ids).logits.log_softmax(-1)
    divergence = nn.functional.kl_div(
        student(ids).logits.log_softmax(-1).flatten(0, 1), target.flatten(0, 1), log_target=True, reduction="batchmean"
    )
    optimizer.zero_grad()
    divergence.backward()
    optimizer.step()
    curve.append(divergence.item())
for step in range(0, 81, 20):
    print(f"step {step:3}: divergence {curve[step]:.3f} nats  {'█' * round(60 * curve[step] / max(curve))}")

# %% [markdown]
# The gates have opened, and the student generates with the cache of its pattern:

# %%
for index, layer in enumerate(student.mixing_layers()):
    print(f"layer {index}: gates up to {layer.feedback.gate.opening.max():.2f} open")
student.eval().save_pretrained("out/hugging-face-student")
student = AutoModelForCausalLM.from_pretrained("out/hugging-face-student")
start = tokenizer("def ", return_tensors="pt").input_ids
cached, uncached = (student.generate(start, max_new_tokens=40, do_sample=False, use_cache=use) for use in (True, False))
print("the same with and without a cache:", torch.equal(cached, uncached))
print(tokenizer.decode(cached[0]))

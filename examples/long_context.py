# %% [markdown]
# # Long-context decoding on a laptop
#
# Attention keeps every token it has seen. A cache-efficient pattern keeps O(log n) or O(√n) positions, in memory
# that is allocated before the first token. Here a small model reads 8,192 tokens in chunks and goes on token by token.

# %%
import time

import torch

import resolvent as rv
from resolvent.ops import Cache

# %% [markdown]
# ## The cache is known in advance

# %%
for name in ("attention", "quadratic+cache", "exponential+cache"):
    model = rv.LanguageModel.shape_only(rv.preset("tiny", pattern=name))
    sizes = [model.profile(n).cache_bytes / 1024 for n in (8 * 1024, 128 * 1024)]
    print(f"{name:18} {sizes[0]:10,.0f} KiB for 8k tokens {sizes[1]:10,.0f} KiB for 128k")

# %% [markdown]
# ## Prefill in chunks
#
# `extend` takes any number of tokens. A prompt that is too long for one pass is read in chunks; the result is the same.

# %%
torch.manual_seed(0)
model = rv.LanguageModel(rv.preset("tiny", pattern="exponential+cache"))
tokens = torch.randint(256, (1, 8192))
cache = model.make_cache(1, "128k")
with torch.inference_mode():
    for chunk in tokens.split(1024, dim=1):
        logits, cache = model.extend(chunk, cache)
cache

# %% [markdown]
# ## Token by token
#
# A token takes as long after 8,192 others as after 512, in the same memory.


# %%
def decode(count: int, token: torch.Tensor, cache: Cache) -> float:
    """Milliseconds per token, greedily."""
    begin = time.perf_counter()
    for _ in range(count):
        logits, cache = model.extend(token, cache)
        token = logits.argmax(-1)
    return 1000 * (time.perf_counter() - begin) / count


with torch.inference_mode():
    for length in (512, 8192):
        _, begun = model.extend(tokens[:, :length], max_tokens="128k")
        decode(20, tokens[:, :1], begun)  # warms up
        print(f"{decode(200, tokens[:, :1], begun):.2f} ms per token after {length:,}, cache of {begun.nbytes:,} bytes")

# %% [markdown]
# ## Go back, and branch
#
# A slot is given to a newer token once nobody reads the older one, so going back needs a `snapshot`. Rows can be
# repeated to go on in several ways at once.

# %%
cache.snapshot()
position = int(cache.positions[0])
with torch.inference_mode():
    decode(10, tokens[:, :1], cache)
    cache.rewind(position)
    four = cache.repeat(4)
four

# %% [markdown]
# # Your own pattern
#
# A pattern says which past positions each token reads. Cost, cache, hops and congestion follow from it, and any causal
# pattern becomes a layer. Here we design one, see what it can express before training anything, and use it.

# %%
import torch

import resolvent as rv

# %% [markdown]
# ## By its strides
#
# Token i reads i - f(0), i - f(1), … A Python function of k will do; as text the same pattern can be saved with a model
# and used on the command line.

# %%
cubic = rv.pattern("stride:k**3+1")  # or rv.strided(lambda k: k**3 + 1)
print(cubic.sources(100), "read by token 100")
cubic

# %% [markdown]
# Every past position stays readable, so a decoder keeps all of them. `+cache` rounds each read to a position that the
# token before still held: as many reads, and a small cache.

# %%
small = rv.pattern("stride:k**3+1+cache")
small

# %% [markdown]
# ## What it costs, and what it can express

# %%
comparison = rv.compare("attention", "quadratic+cache", cubic, small, "order:16", n=512)
comparison

# %% [markdown]
# *Hops* count how often information must be passed on; *congestion* how many tokens share one state when all of them
# are copied. In brackets stands the least of any pattern with such a cache. Every number is exact or a proven bound.

# %%
rv.analyze(small, 512).plot()

# %% [markdown]
# ## By anything
#
# `rv.explicit` takes a function from a token to what it reads, a boolean mask, or rows. Each token here reads its
# parent in a binary tree, and the token before it.

# %%
tree = rv.explicit(lambda i: sorted({(i - 1) // 2, i - 1}) if i else [], n=512)
print(tree.sources(100), "read by token 100;", tree.slots(512), "slots for 512 tokens")
tree

# %% [markdown]
# `A/B` takes A of one pattern and B of another: a window over inputs, and long strides over outputs.

# %%
both = rv.pair("local:8", small)
rv.analyze(both, 512)

# %% [markdown]
# ## As a layer
#
# Decoding out of the small cache gives what the full forward pass gives.

# %%
torch.manual_seed(0)
layer = rv.Mixer(dim=64, heads=4, pattern=small)
x = torch.randn(1, 300, 64)
with torch.no_grad():
    full = layer(x)
    prefix, cache = layer.extend(x[:, :299], max_tokens=512)
    last, cache = layer.extend(x[:, 299:], cache)
print(f"difference {(last - full[:, -1:]).abs().max():.1e}")
cache

# %% [markdown]
# # A Mixer in your own module
#
# `rv.Mixer` is an `nn.Module` from (B, N, dim) to (B, N, dim). It stands wherever attention or a recurrent layer stood;
# the model around it is yours. Here it forecasts a time series, and then runs live, one sample at a time.

# %%
import math

import torch
from torch import Tensor, nn

import resolvent as rv
from resolvent.ops import Cache

# %% [markdown]
# ## The module
#
# `forward` trains on whole series, `step` takes the next samples and a cache. Both call the same layer.


# %%
class Forecaster(nn.Module):
    """Predicts the next sample of a series from all before it."""

    def __init__(self, dim: int = 32, pattern: str = "exponential+cache") -> None:
        super().__init__()
        self.encode = nn.Linear(1, dim)
        self.norm = nn.LayerNorm(dim)
        self.mixer = rv.Mixer(dim, heads=2, pattern=pattern)
        self.decode = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, 1))

    def forward(self, series: Tensor) -> Tensor:  # (B, N) to (B, N)
        x = self.encode(series[..., None])
        return self.decode(x + self.mixer(self.norm(x)))[..., 0]

    def step(self, samples: Tensor, cache: Cache | None) -> tuple[Tensor, Cache]:
        x = self.encode(samples[..., None])
        mixed, cache = self.mixer.extend(self.norm(x), cache, max_tokens=None if cache else "1M")
        return self.decode(x + mixed)[..., 0], cache


# %% [markdown]
# ## Training
#
# Two sine waves of random periods and phases, and noise. Nothing here is special to the library.


# %%
def batch(size: int, length: int) -> Tensor:
    time = torch.arange(length)
    periods, phases = 8 + 40 * torch.rand(2, size, 1), 2 * math.pi * torch.rand(2, size, 1)
    waves = torch.sin(2 * math.pi * time / periods + phases).sum(0)
    return waves + 0.05 * torch.randn(size, length)


torch.manual_seed(0)
model = Forecaster()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for step in range(151):
    series = batch(32, 129)
    loss = nn.functional.mse_loss(model(series[:, :-1]), series[:, 1:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 50 == 0:
        print(f"step {step:3}: mean squared error {loss.item():.3f}")

# %% [markdown]
# The last value again would score:

# %%
print(f"mean squared error {nn.functional.mse_loss(series[:, :-1], series[:, 1:]):.3f}")

# %% [markdown]
# ## Live
#
# Samples arrive one by one. The cache is made for a million of them and stays as it is; predictions equal those of the
# forward pass.

# %%
series, cache, predictions = batch(1, 500), None, []
with torch.no_grad():
    for sample in series[0]:
        prediction, cache = model.step(sample[None, None], cache)
        predictions.append(prediction)
    difference = (torch.cat(predictions, 1) - model(series)).abs().max()
print(f"difference between live and forward: {difference:.1e}")
cache

"""Special cases against code that is not ours."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention, softplus

from resolvent.coefficients import place
from resolvent.coefficients.rope import rope
from resolvent.mixer import Mixer


def copy_into(mixer: Mixer, attention: nn.MultiheadAttention) -> None:
    """The weights of torch's layer, in ours: it keeps queries, keys and values in one matrix."""
    dim = attention.embed_dim
    weight, bias = attention.in_proj_weight, attention.in_proj_bias
    with torch.no_grad():
        mixer.coefficients.scores.weight.copy_(weight[: 2 * dim])
        mixer.coefficients.scores.bias.copy_(bias[: 2 * dim])
        mixer.values.weight.copy_(weight[2 * dim :])
        mixer.values.bias.copy_(bias[2 * dim :])
        mixer.output.load_state_dict(attention.out_proj.state_dict())


@pytest.mark.parametrize("n", [1, 7, 50])
def test_attention_is_multi_head_attention(n: int) -> None:
    torch.manual_seed(n)
    theirs = nn.MultiheadAttention(32, 4, batch_first=True, dtype=torch.float64)
    nn.init.normal_(theirs.in_proj_bias)
    nn.init.normal_(theirs.out_proj.bias)
    ours = Mixer(32, 4, "attention", rope=None).double()
    copy_into(ours, theirs)
    x = torch.randn(3, n, 32, dtype=torch.float64)
    ahead = torch.ones(n, n, dtype=torch.bool).triu(1)
    torch.testing.assert_close(ours(x), theirs(x, x, x, attn_mask=ahead, need_weights=False)[0], rtol=1e-12, atol=1e-12)
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in theirs.parameters())


def test_attention_with_positions_is_sdpa() -> None:
    torch.manual_seed(0)
    mixer, x = Mixer(32, 4, "attention").double(), torch.randn(2, 30, 32, dtype=torch.float64)
    qk = mixer.coefficients.scores(x).view(2, 30, 8, 8)
    q, k = rope(qk, place(2, 30, x.device), 10_000.0).transpose(1, 2).chunk(2, 1)
    v = mixer.values(x).view(2, 30, 4, 8).transpose(1, 2)
    want = scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
    torch.testing.assert_close(mixer(x), mixer.output(want), rtol=1e-12, atol=1e-12)


def test_positions_turn_as_in_transformers() -> None:
    """Their pairs are the two halves of a head, ours are neighbours: the same after putting them in order."""
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    torch.manual_seed(0)
    x = torch.randn(1, 50, 1, 16, dtype=torch.float64)
    angles = torch.arange(50).double()[:, None] * 10_000.0 ** (-torch.arange(0, 16, 2).double() / 16)
    cos, sin = (torch.cat([wave, wave], -1)[None] for wave in (angles.cos(), angles.sin()))
    halves = x.unflatten(-1, (8, 2)).transpose(-1, -2).flatten(-2)[:, :, 0][:, None]
    theirs, _ = llama.apply_rotary_pos_emb(halves, halves, cos, sin)
    ours = rope(x, place(1, 50, x.device), 10_000.0)[:, :, 0].unflatten(-1, (8, 2)).transpose(-1, -2).flatten(-2)
    torch.testing.assert_close(ours, theirs[:, 0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("groups", [1, 2])
def test_mamba_is_the_scan_of_transformers(groups: int) -> None:
    theirs = pytest.importorskip("transformers.models.mamba2.modeling_mamba2").mamba2_chunk_scan
    torch.manual_seed(groups)
    mixer = Mixer(32, 4, "first-order", coefficients=f"mamba:state=16,groups={groups}")
    u: Tensor = torch.randn(2, 75, 32)
    c = mixer.coefficients
    x = mixer.values(u).view(2, 75, 4, 8)
    dt = softplus(u @ c.weight.T + c.step)
    b, read = c.write_read(u).view(2, 75, 2, groups, 16).unbind(2)
    y = theirs(x, dt, -c.log_rate.exp(), b, read, chunk_size=32)
    y = y[0] if isinstance(y, tuple) else y
    torch.testing.assert_close(mixer(u), mixer.output(y.flatten(2)), rtol=1e-5, atol=1e-5)


def test_first_order_is_a_gated_scan() -> None:
    torch.manual_seed(0)
    mixer, u = Mixer(16, 2, "first-order").double(), torch.randn(1, 40, 16, dtype=torch.float64)
    g, x = mixer.coefficients.gate(u)[0], mixer.values(u)[0].view(40, 2, 8)
    outputs = [x[0]]
    for t in range(1, 40):
        keep = g[:, t, None]
        outputs.append(keep * outputs[-1] + (1 - keep) * x[t])
    want = mixer.output(torch.stack(outputs).flatten(1))
    torch.testing.assert_close(mixer(u)[0], want, rtol=1e-12, atol=1e-12)

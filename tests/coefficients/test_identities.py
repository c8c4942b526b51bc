"""Special cases against code that is not ours."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention, softplus

from resolvent.coefficients import positions_of
from resolvent.coefficients.rope import rope
from resolvent.mixer import Mixer
from resolvent.rules.rope import Rope
from tests.operator_cases import assert_close


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
    assert_close(ours(x), theirs(x, x, x, attn_mask=ahead, need_weights=False)[0])
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in theirs.parameters())


def test_attention_with_positions_is_sdpa() -> None:
    torch.manual_seed(0)
    mixer, x = Mixer(32, 4, "attention").double(), torch.randn(2, 30, 32, dtype=torch.float64)
    qk = mixer.coefficients.scores(x).view(2, 30, 8, 8)
    q, k = rope(qk, positions_of(2, 30, x.device), Rope()).transpose(1, 2).chunk(2, 1)
    v = mixer.values(x).view(2, 30, 4, 8).transpose(1, 2)
    want = scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
    assert_close(mixer(x), mixer.output(want))


def test_positions_turn_as_in_transformers() -> None:
    """Their pairs are the two halves of a head, ours are neighbours: the same after putting them in order."""
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    torch.manual_seed(0)
    x = torch.randn(1, 50, 1, 16, dtype=torch.float64)
    angles = torch.arange(50).double()[:, None] * 10_000.0 ** (-torch.arange(0, 16, 2).double() / 16)
    cos, sin = (torch.cat([wave, wave], -1)[None] for wave in (angles.cos(), angles.sin()))
    halves = x.unflatten(-1, (8, 2)).transpose(-1, -2).flatten(-2)[:, :, 0][:, None]
    theirs, _ = llama.apply_rotary_pos_emb(halves, halves, cos, sin)
    ours = rope(x, positions_of(1, 50, x.device), Rope())[:, :, 0].unflatten(-1, (8, 2)).transpose(-1, -2).flatten(-2)
    assert_close(ours, theirs[:, 0])


@pytest.mark.parametrize("state", [1, 5])
def test_mamba1_is_the_selective_scan_of_transformers(state: int) -> None:
    modeling = pytest.importorskip("transformers.models.mamba.modeling_mamba")
    theirs = getattr(modeling, "mamba_selective_scan", None)
    if theirs is None:
        pytest.skip("this release of transformers has the scan within its layer alone")
    torch.manual_seed(state)
    mixer, u = Mixer(32, 4, "first-order", rule=f"mamba1:state={state}"), torch.randn(2, 75, 32)
    c = mixer.coefficients
    low, b, read = c.project(u).mT.split([c.rank, state, state], 1)  # (B, …, N), as theirs are
    y = theirs(mixer.values(u).mT, c.weight @ low, -c.log_rate.exp(), b, read, delta_bias=c.step, delta_softplus=True)
    assert_close(mixer(u), mixer.output(y.mT))


@pytest.mark.parametrize("groups", [1, 2])
def test_mamba2_is_the_scan_of_transformers(groups: int) -> None:
    theirs = pytest.importorskip("transformers.models.mamba2.modeling_mamba2").mamba2_chunk_scan
    torch.manual_seed(groups)
    mixer = Mixer(32, 4, "first-order", rule=f"mamba2:state=16,groups={groups}")
    u: Tensor = torch.randn(2, 75, 32)
    c = mixer.coefficients
    x = mixer.values(u).view(2, 75, 4, 8)
    dt = softplus(u @ c.weight.T + c.step)
    b, read = c.write_read(u).view(2, 75, 2, groups, 16).unbind(2)
    y = theirs(x, dt, -c.log_rate.exp(), b, read, chunk_size=32)
    y = y[0] if isinstance(y, tuple) else y
    assert_close(mixer(u), mixer.output(y.flatten(2)))


def test_first_order_is_a_gated_scan() -> None:
    torch.manual_seed(0)
    mixer, u = Mixer(16, 2, "first-order").double(), torch.randn(1, 40, 16, dtype=torch.float64)
    g, x = mixer.coefficients.gate(u)[0], mixer.values(u)[0].view(40, 2, 8)
    outputs = [x[0]]
    for t in range(1, 40):
        keep = g[:, t, None]
        outputs.append(keep * outputs[-1] + (1 - keep) * x[t])
    want = mixer.output(torch.stack(outputs).flatten(1))
    assert_close(mixer(u)[0], want)


@pytest.mark.parametrize("gate", ["half", "mamba"])
def test_mamba2_becomes_the_gated_softmax(gate: str) -> None:
    """At first order, with A = 1 - B and without vectors: what is left between the two rules are these two factors."""
    torch.manual_seed(3)
    decay = {"half": "0.5", "mamba": "mamba"}[gate]
    ours = Mixer(32, 4, "first-order", rule=f"softmax:gate={gate}").double()
    theirs = Mixer(32, 4, "first-order", rule=f"mamba2:state=1,decay={decay},input=complement,vectors=ones").double()
    states = [{name.replace("gate.", ""): t for name, t in m.state_dict().items()} for m in (ours, theirs)]
    assert {name: t.shape for name, t in states[0].items()} == {name: t.shape for name, t in states[1].items()}
    theirs.load_state_dict(states[0])
    x = torch.randn(2, 75, 32, dtype=torch.float64)
    assert_close(theirs(x), ours(x))
    for mixer in (ours, theirs):
        a, b = mixer.weights(x)[0].matrices()
        assert_close((a + b).sum(-1), torch.ones(2, 4, 75, dtype=torch.float64))

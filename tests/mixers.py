"""Every mixer that the tests go through, and what it should compute, written plainly with n × n matrices."""

import torch
from torch import Tensor
from torch.nn.functional import elu, softplus

import resolvent as rv
from resolvent.coefficients.gates import ConstantGate, ScalarGate, TokenGate
from resolvent.mixer import Mixer
from resolvent.rules import rule as rule_of
from tests.operator_cases import FEW_READS, NEW, PAIRED, TABLE, Spec

RULES = [
    "softmax", "softmax:gate=mamba", "softmax:gate=0.4", "softmax:gate=scalar@0.3", "joint", "tied", "tied:blend=free",
    "distance", "distance:shape=decay", "distance:shape=constant", "low-rank:rank=5", "mamba1:state=3",
    "mamba2:state=3", "mamba2:state=2,groups=3", "mamba1:state=3,input=complement,skip=true",
    "mamba1:state=1,vectors=ones", "mamba2:state=2,input=complement,skip=true",
    "mamba2:state=1,input=complement,vectors=ones", "linear", "linear:form=griffin",
]  # fmt: skip
CONVOLVED = [("first-order", "softmax:conv=4"), ("first-order", "mamba1:conv=3,state=2"),
             ("first-order", "mamba2:conv=4"), ("dense", "softmax:conv=3"), ("attention", "low-rank:conv=2,rank=5"),
             ("exponential+cache", "softmax:conv=1")]  # fmt: skip
PLAIN: list[tuple[Spec, str]] = [
    (spec, rule) for spec in rv.PAPER_STRUCTURES for rule in RULES if rule_of(rule).refusal(rv.pattern(spec)) is None
]
PLAIN += CONVOLVED
NEWER: list[tuple[Spec, str]] = [(spec, "softmax") for spec in NEW] + [(spec, "joint") for spec in (*PAIRED, TABLE)]
NEWER += [
    ("attention/first-order", "low-rank:rank=5"), ("local:8/exponential+cache", "distance:shape=decay"),
    ("exponential/order:8", "softmax:conv=3"), ("fenwick", "tied"), (TABLE, "distance"),
    ("binomial:4", "low-rank:rank=5"),
]  # fmt: skip
CASES = PLAIN + NEWER

# What differs in the code, in pairs: every kind of pattern with softmax, every rule on several kinds of pattern.
COVER: list[tuple[Spec, str]] = [
    ("attention", "softmax"), ("local:8", "softmax"), ("order:8", "softmax"), ("exponential", "softmax"),
    ("exponential+cache", "softmax"), ("fenwick", "softmax"), (FEW_READS, "softmax"),
    ("local:8/exponential+cache", "softmax"), ("first-order", "softmax:gate=mamba"),
    ("quadratic+cache", "softmax:gate=0.4"), ("dense", "softmax:gate=scalar@0.3"), ("dense", "joint"),
    ("quadratic", "joint"), (TABLE, "joint"), ("attention/first-order", "joint"), ("exponential+cache", "tied"),
    ("fenwick", "tied"), ("order:8", "tied:blend=free"), ("local:8", "distance"), (TABLE, "distance"),
    ("local:8/exponential+cache", "distance:shape=decay"), ("quadratic+cache", "distance:shape=constant"),
    ("attention", "low-rank:conv=2,rank=5"), ("binomial:4", "low-rank:rank=5"),
    ("attention/first-order", "low-rank:rank=5"), ("exponential/order:8", "softmax:conv=3"),
    ("first-order", "mamba1:state=3"), ("first-order", "mamba1:state=3,input=complement,skip=true"),
    ("first-order", "mamba1:conv=3,state=2"), ("first-order", "mamba2:state=2,groups=3"),
    ("first-order", "mamba2:state=1,input=complement,vectors=ones"), ("first-order", "linear"),
    ("first-order", "linear:form=griffin"),
]  # fmt: skip


def make(spec: object, rule: str, *, seed: int = 0, dim: int = 24, heads: int = 3, **options: object) -> Mixer:
    """A mixer in float64 whose parameters, biases and gates too, are large enough to matter."""
    torch.manual_seed(seed)
    mixer = Mixer(dim, heads, spec, rule=rule, **options).double()
    with torch.no_grad():
        for p in mixer.parameters():
            p.copy_(torch.randn_like(p) * (0.5 if p.ndim < 2 else p.shape[-1] ** -0.5))
    return mixer


def expected(mixer: Mixer, u: Tensor) -> Tensor:
    """The output for (B, N, dim), head by head: values, dense A and B, (I - B)^-1 A, output."""
    layer, b, n = mixer.layer, u.shape[0], u.shape[1]
    if layer.rule.conv:
        u = convolved(u, mixer.convolution.weight)
    x = mixer.values(u).view(b, n, layer.kv_heads, layer.head_dim)
    share = layer.heads // layer.kv_heads
    heads = [x[:, :, h // share] for h in range(layer.heads)]
    name = layer.rule.name
    if name == "mamba2":
        mixed = [mamba2_head(mixer, u, heads[h], h) for h in range(layer.heads)]
    elif name == "mamba1":
        mixed = [mamba1_channel(mixer, u, x[..., None], c) for c, x in enumerate(torch.cat(heads, -1).unbind(-1))]
    elif name == "linear":
        return mixer.output(linear_recurrence(mixer, u, torch.stack(heads, 2).flatten(2)))
    else:
        mixed = []
        for h in range(layer.heads):
            a, fb = dense_matrices(mixer, u, h)
            mixed.append(torch.linalg.solve(torch.eye(n).double() - fb, a @ heads[h]))
    return mixer.output(torch.cat(mixed, -1))


def dense_matrices(mixer: Mixer, u: Tensor, head: int) -> tuple[Tensor, Tensor]:
    """A and B of one head, (B, N, N)."""
    layer, (b, n) = mixer.layer, u.shape[:2]
    p, rule = layer.patterns[head], layer.rule
    with_self, reads = (torch.from_numpy(p.mask(n, part)) for part in ("a", "b"))
    has_source = reads.any(-1)
    g = gate_of(mixer, u, head) * has_source if p.recurrent else torch.zeros(b, n).double()
    sa, sb = scores_of(mixer, u, head)
    feedback = g[..., None] * softmax_on(sb, reads) if p.recurrent else torch.zeros(b, n, n).double()
    match rule.name:
        case "tied" if rule.blend == "token":
            blend = mixer.coefficients.blend
            share = 7 / 8 * (u @ blend.weight[head] + blend.bias[head]).sigmoid()[:, None]  # of the input, by column
            return feedback * share + torch.diag_embed(1 - g), feedback * (1 - share)
        case "tied":
            delta = mixer.coefficients.delta[head]
            own = torch.diag_embed(1 - (1 + delta) * feedback.sum(-1))
            return delta * feedback + own, feedback
        case "joint":
            return whole(sa, feedback, with_self)
        case "low-rank":
            features = elu(mixer.coefficients.features(u)) + 1
            q, k = features.view(b, n, 2, layer.heads, -1)[:, :, :, head].unbind(2)
            a = (q @ k.mT).tril()
            return (1 - g)[..., None] * a / a.sum(-1, keepdim=True), feedback
    return (1 - g)[..., None] * softmax_on(sa, with_self), feedback


def scores_of(mixer: Mixer, u: Tensor, head: int) -> tuple[Tensor, Tensor]:
    """Scores of A and B on all pairs, zero where the layer has none."""
    layer, c, (b, n) = mixer.layer, mixer.coefficients, u.shape[:2]
    none = torch.zeros(b, n, n).double()
    share, scale = layer.heads // layer.kv_heads, layer.head_dim**-0.5
    if layer.rule.name == "distance":
        found = []
        for side in "ab":
            if f"q{side}" in c.vectors:
                q, k = (c.vectors[f"{t}{side}"][i].expand(b, n, -1) for t, i in (("q", head), ("k", head // share)))
                found.append(rotate(q, 10_000.0) @ rotate(k, 10_000.0).mT * scale)
            elif f"log_rate_{side}" in c.vectors:
                distance = torch.arange(n).double()[:, None] - torch.arange(n)
                found.append(none - c.vectors[f"log_rate_{side}"][head].exp() * distance)
            else:
                found.append(none)
        return found[0], found[1]
    if getattr(c, "scores", None) is None:
        return none, none
    projected = c.scores(u).view(b, n, -1, layer.head_dim)
    at = 0
    result = {}
    for group in layer.groups():
        sizes = {"qa": group.count, "ka": group.kv_count, "qb": group.count, "kb": group.kv_count}
        if layer.rule.name == "low-rank":  # what it feeds back, and so its keys, are each head's own
            sizes["kb"], share = group.count, 1
        keep_a = group.run.direct == "all" or layer.rule.name == "joint"
        keep_b = bool((group.run.mask(100, "b").sum(1) > 1).any())  # over one source the softmax is 1: no scores
        for name, size in sizes.items():
            if (keep_a if name[1] == "a" else keep_b) and not (layer.rule.name == "low-rank" and name[1] == "a"):
                mine = head - group.heads.start
                if 0 <= mine < group.count:
                    row = mine if name[0] == "q" else mine // share
                    result[name] = projected[:, :, at + row]
                at += size
    sa = turned_scores(result["qa"], result["ka"], layer.rope) * scale if "qa" in result else none
    sb = turned_scores(result["qb"], result["kb"], layer.rope) * scale if "qb" in result else none
    return sa, sb


def gate_of(mixer: Mixer, u: Tensor, head: int) -> Tensor:
    gate = mixer.coefficients.gate
    h = sum(p.recurrent for p in mixer.layer.patterns[:head])  # gates exist for heads with feedback alone
    match gate:
        case TokenGate():
            return (-softplus(u @ gate.weight[h] + gate.step[h]) * gate.log_rate[h].exp()).exp()
        case ScalarGate():
            return gate.logit[h].sigmoid().expand(u.shape[:2])
        case ConstantGate():
            return torch.full(u.shape[:2], gate.gamma, dtype=torch.float64)
    raise AssertionError(gate)


def turned_scores(q: Tensor, k: Tensor, rope: float | str | None) -> Tensor:
    """(B, N, N): the query of i, turned by what the setting makes of the distance i - j, and the key of j as it is."""
    if rope is None:
        return q @ k.mT
    n, d, base = q.shape[1], q.shape[-1], 10_000.0
    distance = torch.arange(n).double()[:, None] - torch.arange(n)
    match rope.replace("=", ":").split(":") if isinstance(rope, str) else rope:
        case [("linear" | "ntk" | "near" | "capped") as kind, _, text]:
            number = float(text)
            base *= number ** (d / (d - 2)) if kind == "ntk" else 1
            if kind == "linear":
                distance = distance / number
            elif kind == "near":
                distance = torch.where(distance > number, 0, distance)
            elif kind == "capped":
                distance = torch.where(distance > number, number, distance)
        case _:
            base = float(rope)
    scores = torch.zeros(q.shape[0], n, n).double()
    for m in range(0, d, 2):
        c, s = (distance * base ** (-m / d)).cos(), (distance * base ** (-m / d)).sin()
        q0, q1, k0, k1 = q[:, :, None, m], q[:, :, None, m + 1], k[:, None, :, m], k[:, None, :, m + 1]
        scores = scores + (c * q0 - s * q1) * k0 + (s * q0 + c * q1) * k1
    return scores


def rotate(x: Tensor, base: float | None) -> Tensor:
    """(B, N, D) turned pair by pair, with sines and cosines one at a time."""
    if base is None:
        return x
    columns = []
    for m in range(0, x.shape[-1], 2):
        angle = torch.arange(x.shape[1]).double() * base ** (-m / x.shape[-1])
        c, s = angle.cos(), angle.sin()
        columns += [c * x[..., m] - s * x[..., m + 1], s * x[..., m] + c * x[..., m + 1]]
    return torch.stack(columns, -1)


def softmax_on(scores: Tensor, mask: Tensor) -> Tensor:
    """A softmax over the allowed entries of each row, zeros in rows that have none."""
    weights = torch.where(mask, (scores - scores.amax(-1, keepdim=True).detach()).exp(), 0)
    total = weights.sum(-1, keepdim=True)
    return torch.where(total > 0, weights / torch.where(total > 0, total, 1), 0)


def whole(scores: Tensor, feedback: Tensor, with_self: Tensor) -> tuple[Tensor, Tensor]:
    """A and B whose T is the row-normalized (I - B)^-1 exp(scores)."""
    direct = torch.where(with_self, scores.exp(), 0)
    n = scores.shape[-1]
    t = torch.linalg.solve(torch.eye(n).double() - feedback, direct)
    sums = t.sum(-1)
    return direct / sums[..., None], feedback * sums[:, None, :] / sums[..., None]


def mamba2_head(mixer: Mixer, u: Tensor, x: Tensor, head: int) -> Tensor:
    c, rule = mixer.coefficients, mixer.layer.rule
    delta = softplus(u @ c.weight[head] + c.step[head])
    write = read = torch.ones(*u.shape[:2], 1).double()
    if rule.vectors == "token":
        vectors = c.write_read(u).view(*u.shape[:2], 2, rule.groups, rule.state)
        write, read = vectors[:, :, :, head * rule.groups // mixer.layer.heads].unbind(2)
    state, outputs = torch.zeros(u.shape[0], rule.state, x.shape[-1]).double(), []
    for t in range(u.shape[1]):
        fade = (-delta[:, t] * c.log_rate[head].exp()).exp()[:, None, None]
        taken = delta[:, t, None, None]
        if rule.input == "complement":
            taken = 1 - fade if t else torch.ones_like(fade)
        state = fade * state + taken * write[:, t, :, None] * x[:, t, None]
        outputs.append((read[:, t, :, None] * state).sum(1))
    y = torch.stack(outputs, 1)
    return y + c.skip[head] * x if rule.skip else y


def mamba1_channel(mixer: Mixer, u: Tensor, x: Tensor, channel: int) -> Tensor:
    """Σ_s c_s (I - B_s)^-1 A_s x, with the matrices of each state written out."""
    c, rule, n, mixed = mixer.coefficients, mixer.layer.rule, u.shape[1], torch.zeros_like(x)
    low, vectors = c.project(u).split([c.rank, c.project.out_features - c.rank], -1)
    delta = softplus(low @ c.weight[channel] + c.step[channel])
    for s in range(rule.state):
        fade = (-delta * c.log_rate[channel, s].exp()).exp()
        feedback = torch.diag_embed(fade[:, 1:], -1)
        direct = torch.diag_embed(delta) if rule.input == "step" else torch.diag_embed(1 - feedback.sum(-1))
        write, read = torch.ones_like(delta), torch.ones_like(delta)
        if rule.vectors == "token":
            write, read = vectors[..., s], vectors[..., rule.state + s]
        states = torch.linalg.solve(torch.eye(n).double() - feedback, direct @ (write[..., None] * x))
        mixed = mixed + read[..., None] * states
    return mixed + c.skip[channel] * x if rule.skip else mixed


def convolved(u: Tensor, weight: Tensor) -> Tensor:
    """Each channel by a banded matrix: the weight in column k stands k places below the diagonal."""
    n = u.shape[1]
    bands = [torch.diag_embed(w[:, None].expand(-1, max(n - k, 0)), -k)[:, :n, :n] for k, w in enumerate(weight.T)]
    return torch.einsum("cij,bjc->bic", sum(bands), u)


def linear_recurrence(mixer: Mixer, u: Tensor, x: Tensor) -> Tensor:
    c, outputs = mixer.coefficients, []
    gates = c.gates(u).sigmoid()
    for t in range(u.shape[1]):
        if c.fade is None:
            z = gates[:, t]
            y = x[:, t] if t == 0 else (1 - z) * outputs[-1] + z * x[:, t]
        else:
            r, i = gates[:, t].chunk(2, -1)
            a = (-8 * softplus(c.fade) * r).exp()
            y = i * x[:, t] if t == 0 else a * outputs[-1] + (1 - a**2).sqrt() * i * x[:, t]
        outputs.append(y)
    return torch.stack(outputs, 1)

"""`extend` in random splits against the full pass, with caches copied, reordered, saved and rewound on the way."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

import resolvent as rv
from fuzz.calls import Call, draw_call
from fuzz.case import Case, Difference
from fuzz.compare import Exact, Tensors, exactly
from resolvent.ops import Cache
from resolvent.ops.cache.stages import stage_caches

_DTYPES = [torch.float64, torch.float64, torch.float64, torch.float32, torch.bfloat16]
_REFERENCE_READS = 300  # the reference goes through reads one by one
_BACKENDS = ["auto", "auto", "cpu", "torch", "reference", "dense"]


@dataclass
class _Session:
    """A cache whose row r goes on with sequence `rows[r]`, and the outputs so far: which, from where, and what."""

    call: Call
    cache: Cache
    rows: list[int]
    backend: str
    outputs: list[tuple[list[int], list[int], list[int], Tensor]]

    @property
    def positions(self) -> list[int]:
        return [int(p) for p in self.cache.positions]


def extend(case: Case) -> None:
    call = draw_call(case, longest=100, dtypes=_DTYPES, padding=False)
    if not call.batch:
        return
    _write_out(call)
    wanted = [name for name in call.tensors if case.chance(0.85)] if case.chance(0.4) else []
    options = {"max_tokens": case.choose([None, None, call.n, call.n + 3]), "kv_heads": call.tensors["x"].shape[1]}
    cache = rv.decode_cache(
        call.operated, call.batch, call.heads, call.tensors["x"].shape[-1], call.key_dim, dtype=call.dtype,
        normalize="joint" if call.joint else "gate", **options,
    )  # fmt: skip
    short = call.operated.total_reads(call.n) * call.batch <= _REFERENCE_READS
    usable = {"dense": call.operated.is_dense, "reference": short}
    backend = case.choose([name for name in _BACKENDS if usable.get(name, True)])
    log: list[str] = []
    case.say(backend=backend, wanted=wanted, **options, steps=log)
    leaves = {name: t.detach().requires_grad_(name in wanted) for name, t in call.tensors.items()}
    session = _Session(call, cache, list(range(call.batch)), backend, [])
    with torch.set_grad_enabled(bool(wanted)), case.threads():
        _drive(case, session, leaves, log)
    weights = {i: case.normal(y.shape) for i, (*_, y) in enumerate(session.outputs)}

    def total(pieces: list[Tensor]) -> Tensor:
        return torch.stack([(weights[i].to(y.dtype) * y).sum() for i, y in enumerate(pieces)]).sum()[None]

    run = call.oracle()

    def expected(tensors: Tensors) -> Tensor:
        y = run(tensors)
        return total([_chosen(y, *which) for *which, _ in session.outputs])

    full = exactly(case, run, call.tensors, None, [])
    exact = exactly(case, expected, call.tensors, None, wanted) if wanted else full
    if full.useless or exact.useless:
        case.count("skipped")
        return
    _check(session, full, exact, leaves, wanted, total)
    case.count("gradients", len(wanted))


def _write_out(call: Call) -> None:
    """A gate for each row of its own, so that rows can be taken apart."""
    gate = call.tensors.get("gate")
    if gate is not None and gate.ndim:
        call.tensors["gate"] = gate.expand(call.batch, call.heads, call.n).contiguous()


def _drive(case: Case, session: _Session, leaves: Tensors, log: list[str]) -> None:
    """Up to some steps, then all rows to their ends."""
    for _ in range(case.integer(0, 12)):
        log.append(_advance(case, session, leaves, case.choose([1, 1, 2, 5, 9, 30])))
        if case.chance(0.5):
            log.append(_change(case, session))
        if case.chance(0.2):
            log.append(_detour(case, session, leaves))
    while min(session.positions) < session.call.n:
        log.append(_advance(case, session, leaves, case.choose([1, 3, 100])))


def _advance(case: Case, session: _Session, leaves: Tensors, size: int) -> str:
    """The next tokens of each row; rows that have fewer left, or wait, are padded on the left."""
    call, rows, positions = session.call, session.rows, session.positions
    left = [call.n - position for position in positions]
    counts = [min(size if case.chance(0.8) else case.integer(0, size), rest) for rest in left]
    length = max(counts)
    if not length:
        return "nothing left"
    cut = {name: t for name, t in leaves.items() if name == "tied" or not t.ndim}
    for name, t in leaves.items():
        if name not in cut:
            pieces = [_padded(t[r, :, p : p + c], length) for r, p, c in zip(rows, positions, counts, strict=True)]
            cut[name] = torch.stack(pieces)
    start = [length - count for count in counts]
    arguments = call.arguments(cut)
    y = rv.extend(cut["x"], call.drawn.given, session.cache, **arguments,
                  start=start if any(start) else None, backend=session.backend)  # fmt: skip
    session.outputs.append((list(rows), positions, counts, y))
    case.count("decode steps")
    if session.positions != [p + c for p, c in zip(positions, counts, strict=True)]:
        raise Difference(f"positions are {session.positions} after {counts} tokens from {positions} on.")
    return f"extend {counts} from {positions}"


def _detour(case: Case, session: _Session, leaves: Tensors) -> str:
    """Some tokens that do not belong there, with a snapshot among them, undone again."""
    positions, sizes = session.positions, [case.choose([1, 4, 12]), case.choose([1, 3])]
    if max(positions) + sum(sizes) > session.call.n:  # the cache may have no room for more
        return "no detour"
    for size in sizes:
        session.cache.snapshot()
        wrong = {name: t[session.rows, :, :size] if name != "tied" and t.ndim else t for name, t in leaves.items()}
        rv.extend(wrong["x"], session.call.drawn.given, session.cache, **session.call.arguments(wrong),
                  backend=session.backend)  # fmt: skip
    session.cache.rewind(positions)
    return f"detour of {sizes}"


def _change(case: Case, session: _Session) -> str:
    """What else can be done with a cache; rows then go on from wherever it leaves them."""
    cache, batch = session.cache, session.cache.batch
    match case.choose(["clone", "reorder", "select", "repeat", "snapshot", "snapshot", "rewind", "rewind", "state"]):
        case "clone":
            session.cache = cache.clone()
            return "clone"
        case "reorder":
            order = [case.integer(0, batch - 1) for _ in range(batch)]
            session.cache, session.rows = cache.reorder(order), [session.rows[i] for i in order]
            return f"reorder {order}"
        case "select":
            order = [case.integer(0, batch - 1) for _ in range(case.integer(1, 3))]
            session.cache, session.rows = cache.select(order), [session.rows[i] for i in order]
            return f"select {order}"
        case "repeat" if batch < 3:
            session.cache, session.rows = cache.repeat(2), [row for row in session.rows for _ in range(2)]
            return "repeat 2"
        case "snapshot":
            cache.snapshot()
            return "snapshot"
        case "rewind":
            targets = [_target(case, session, row) for row in range(batch)]
            cache.rewind(targets)
            # From the beginning another sequence may come: what is left of the one before would show.
            session.rows = [
                row if target else case.integer(0, session.call.batch - 1)
                for row, target in zip(session.rows, targets, strict=True)
            ]
            return f"rewind {targets}, rows {session.rows}"
        case "state" if not any(t.requires_grad for t in cache.tensors.values()):
            loaded = cache.clone()
            loaded.rewind(0)
            loaded.load_state_dict(cache.state_dict())
            session.cache = loaded
            return "state_dict"
    return "nothing"


def _target(case: Case, session: _Session, row: int) -> int:
    """Where a row may go back to: where it is, its beginning, a snapshot, or anywhere if nothing is overwritten."""
    position = session.positions[row]
    dropping = [stage for stage in stage_caches(session.cache) if stage.pattern.reuses_slots]
    if not dropping:
        return case.choose([position, 0, case.integer(0, position)])
    taken = [{int(s.positions[row]) for s in stage.snapshots} for stage in dropping]
    return case.choose([position, 0, *sorted(p for p in set.intersection(*taken) if p <= position)])


def _check(session: _Session, full: Exact, exact: Exact, leaves: Tensors, wanted: list[str], total: object) -> None:
    call = session.call
    # Half precision rounds every output that is fed back: as many roundings as there are tokens, which partly cancel.
    factor = 4.0 * (1 + 0.25 * call.n**0.5 if call.dtype == torch.bfloat16 else 1)
    for rows, positions, counts, y in session.outputs:
        expected = Exact({"y": _chosen(full.values["y"], rows, positions, counts)}, full.sensitivity)
        expected.check("y", y, call.dtype, f"extend {counts} from {positions}", factor)
    if wanted and session.outputs:
        value = total([y for *_, y in session.outputs])  # type: ignore[operator]
        inputs = [leaves[name] for name in wanted]
        if value.requires_grad:
            found = torch.autograd.grad(value, inputs, materialize_grads=True, allow_unused=True)
        else:  # none of them is used by this pattern
            found = tuple(map(torch.zeros_like, inputs))
        for name, gradient in zip(wanted, found, strict=True):
            exact.check(f"d{name}", gradient, call.dtype, "through the cache", 3 * factor)


def _chosen(y: Tensor, rows: list[int], positions: list[int], counts: list[int]) -> Tensor:
    """What `extend` should return, out of the outputs of all sequences."""
    length = max(counts)
    pieces = [_padded(y[r, :, p : p + c], length) for r, p, c in zip(rows, positions, counts, strict=True)]
    return torch.stack(pieces)


def _padded(t: Tensor, length: int) -> Tensor:
    """(H, count, D) or (H, count) with zeros before it."""
    missing = length - t.shape[1]
    return t if not missing else pad(t, (0, 0, missing, 0) if t.ndim == 3 else (missing, 0))

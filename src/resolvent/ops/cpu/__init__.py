"""The fast backend for a CPU: compiled kernels over sequences and heads, on torch's own threads."""

from resolvent.ops.backend import Request
from resolvent.ops.cpu.ahead import prepare
from resolvent.ops.cpu.decode import step
from resolvent.ops.cpu.mix import backward, forward, mix, saved_like
from resolvent.ops.cpu.solve import solve

NAME = "cpu"


def refusal(request: Request) -> str | None:
    if request.device != "cpu":
        return f"backend 'cpu' needs tensors on a CPU, got {request.device}."
    return None


def preference(request: Request) -> str | None:
    if request.device != "cpu":
        return None
    return "the tensors are on a CPU, and compiled kernels cover every pattern there"


__all__ = ["NAME", "backward", "forward", "mix", "preference", "prepare", "refusal", "saved_like", "solve", "step"]

"""Answers from a process of its own, with limits: a question that takes too long or too much ends it, not the server.

`python -m resolvent.explore.worker MEGABYTES NICENESS` reads a question and writes an answer per line, in JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE, Process
from contextlib import suppress
from typing import cast

from resolvent.errors import shortened
from resolvent.explore.answers import Question, answer
from resolvent.untrusted import parse

_LONGEST_LINE = 64 << 20  # bytes of an answer
_MOST_WAITING = 64
_PATIENT = 5  # niceness


class Refused(Exception):  # noqa: N818  # it is an answer, not a failure
    """A question without an answer: the status of HTTP, and what to say."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Worker:
    """One process, started when first asked; questions wait for each other. A `patient` one lets others go first."""

    def __init__(self, seconds: float, megabytes: int, *, patient: bool = False) -> None:
        self.seconds, self.megabytes, self.patient = seconds, megabytes, patient
        self._process: Process | None = None
        self._turn = asyncio.Lock()
        self._waiting = 0

    async def ask(self, name: str, question: Question) -> str:
        """The answer in JSON; `Refused` if there is none."""
        if self._waiting >= _MOST_WAITING:
            raise Refused(503, "too many questions at once: try again in a moment.")
        self._waiting += 1
        try:
            async with self._turn:
                return await self._answer(name, question)
        finally:
            self._waiting -= 1

    async def start(self) -> None:
        """Start the process ahead of the first question."""
        async with self._turn:
            await self._running()

    async def stop(self) -> None:
        """End the process, also in the middle of an answer."""
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _running(self) -> Process:
        if self._process is None or self._process.returncode is not None:
            niceness = _PATIENT if self.patient else 0
            command = [sys.executable, "-m", "resolvent.explore.worker", str(self.megabytes), str(niceness)]
            self._process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, limit=_LONGEST_LINE)
        return self._process

    async def _answer(self, name: str, question: Question) -> str:
        process = await self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps([name, dict(question)]).encode() + b"\n")
        try:
            line = await asyncio.wait_for(process.stdout.readline(), self.seconds)
        except TimeoutError:
            await self.stop()
            raise Refused(
                503, f"this takes longer than {self.seconds:g} seconds: choose a shorter length or a simpler pattern."
            ) from None
        except asyncio.CancelledError:  # the answer would be taken for the next one
            await self.stop()
            raise
        if not line:
            await self.stop()
            raise Refused(503, "the process that answers has ended: choose a shorter length or a simpler pattern.")
        status, content = line.decode().rstrip("\n").split(" ", 1)
        if status != "200":
            raise Refused(int(status), str(parse(content)))
        return content


def limit_memory(megabytes: int) -> None:
    """Allow the process no more address space than this, where the system can."""
    try:
        import resource
    except ImportError:  # Windows has none
        return
    resource.setrlimit(resource.RLIMIT_AS, (megabytes << 20, megabytes << 20))


def answer_line(line: str) -> str:
    """The status of HTTP, and the answer or what is wrong with the question."""
    name, question = cast("tuple[str, Question]", parse(line))  # as `_answer` writes it
    try:
        return f"200 {json.dumps(answer(name, question), allow_nan=False, ensure_ascii=False)}"
    except MemoryError:
        return f"503 {json.dumps('this takes too much memory: choose a shorter length or a simpler pattern.')}"
    except (ValueError, ImportError) as error:
        return f"400 {json.dumps(str(error))}"
    except Exception as error:  # a defect of the library: the next question is answered all the same
        return f"500 {json.dumps(f'{type(error).__name__}: {shortened(str(error))}')}"


def main() -> None:
    """Answer until the input ends, as it does when the server has."""
    sys.stdin.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    limit_memory(int(sys.argv[1]))
    if hasattr(os, "nice"):  # Windows has none
        os.nice(int(sys.argv[2]))
    for line in sys.stdin:
        print(answer_line(line), flush=True)


if __name__ == "__main__":
    main()

"""The server of the page: on this machine alone, for pages of its own alone, and within limits."""

from __future__ import annotations

import asyncio
import json
import socket
import webbrowser
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from resolvent.errors import SettingError
from resolvent.explore.answers import ANSWERS, Question
from resolvent.explore.worker import Refused, Worker

HOST = "127.0.0.1"
PAGE = Path(__file__).parent / "page"
_NAMES = ("127.0.0.1", "localhost", "::1")
_LONGEST_QUESTION = 4096  # characters
_MEGABYTES = 4096
_KEPT_BYTES = 64 << 20  # of answers
_LANES: dict[str, tuple[float, str, Question]] = {  # a process for each, so that no long question delays a short one:
    # its limit in seconds, and what it is asked first, which loads what is compiled
    "drawings": (30.0, "scene", {"p": "exponential+cache", "n": "64"}),
    "loads": (30.0, "load", {"p": "exponential+cache", "n": "64", "effort": "quick"}),
    "tables": (60.0, "curves", {"p": "exponential+cache"}),
    "designs": (60.0, "designs", {"n": "1024", "slots": "16", "heads": "1"}),
    "searches": (60.0, "load", {"p": "exponential+cache", "n": "64", "effort": "search"}),
}
_PATIENT = ("tables", "designs", "searches")  # what may take seconds lets what is drawn at once go first
_LANE_OF = {"catalogue": "drawings", "scene": "drawings", "paths": "drawings", "load": "loads", "bounds": "drawings",
            "curves": "tables", "figures": "tables", "designs": "designs"}  # fmt: skip
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-cache",
}


class Guard:
    """Refuses what does not come from a page of this server: a name that others gave this machine, another origin."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        reason = refusal(Headers(scope=scope), scope["path"])

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                more = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
                message["headers"] = [*message["headers"], *more]
            await send(message)

        app = self.app if reason is None else PlainTextResponse(reason, status_code=403)
        await app(scope, receive, send_with_headers)


def refusal(headers: Headers, path: str) -> str | None:
    """Why a request is refused; None if it is not."""
    host, origin = headers.get("host", ""), headers.get("origin")
    if _name(f"//{host}") not in _NAMES:
        return f"expected this machine as the host, such as {HOST}, got {host[:80]!r}."
    if origin is not None and origin != f"http://{host}":
        return f"expected a page of this server, got one of {origin[:80]!r}."
    if path != "/" and headers.get("sec-fetch-site") not in (None, "same-origin", "none"):
        return "expected a page of this server, got another site."
    return None


def _name(address: str) -> str | None:
    try:
        return urlsplit(address).hostname
    except ValueError:
        return None


class Answers:
    """The answers of workers, the latest of which are kept."""

    def __init__(self) -> None:
        self._workers = {
            lane: Worker(seconds, _MEGABYTES, patient=lane in _PATIENT) for lane, (seconds, *_) in _LANES.items()
        }
        self._warming: asyncio.Task[None] | None = None
        self._kept: OrderedDict[str, bytes] = OrderedDict()
        self._bytes = 0

    async def get(self, name: str, question: dict[str, str]) -> bytes:
        key = json.dumps([name, sorted(question.items())])
        if key not in self._kept:
            worker = self._workers[lane_of(name, question)]
            self._keep(key, (await worker.ask(name, question)).encode())
        self._kept.move_to_end(key)
        return self._kept[key]

    def _keep(self, key: str, content: bytes) -> None:
        if key not in self._kept:  # two may have asked at once
            self._kept[key] = content
            self._bytes += len(content)
        while self._bytes > _KEPT_BYTES and len(self._kept) > 1:
            self._bytes -= len(self._kept.popitem(last=False)[1])

    async def start(self) -> None:
        """Start the process that draws; the others, and what they have compiled, are loaded while the page is."""
        await self._workers["drawings"].start()
        self._warming = asyncio.create_task(self._warm())

    async def _warm(self) -> None:
        """One after the other: the first answers of the page have the machine for themselves."""
        for _, name, question in _LANES.values():
            with suppress(Refused):
                await self.get(name, dict(question))

    async def stop(self) -> None:
        if self._warming is not None:
            self._warming.cancel()
            await asyncio.gather(self._warming, return_exceptions=True)
        await asyncio.gather(*(worker.stop() for worker in self._workers.values()))


def lane_of(name: str, question: Question) -> str:
    """The page asks for quick bounds first, and then for those of a search, which may take seconds."""
    return "searches" if question.get("effort") == "search" and name in ("load", "figures") else _LANE_OF[name]


def application() -> Starlette:
    """The page at /, its files, and the library's answers at /api/NAME."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        app.state.answers = Answers()
        await app.state.answers.start()
        yield
        await app.state.answers.stop()

    routes = [
        Route("/", page, methods=["GET"]),
        Route("/api/{name}", reply, methods=["GET"]),
        Mount("/page", StaticFiles(directory=PAGE)),
    ]
    return Starlette(routes=routes, middleware=[Middleware(Guard)], lifespan=lifespan)


async def page(_: Request) -> Response:
    return FileResponse(PAGE / "index.html")


async def reply(request: Request) -> Response:
    """An answer, or the library's own words for what is wrong."""
    name = request.path_params["name"]
    if name not in ANSWERS:
        return _json(json.dumps({"error": "there is no such question."}), 404)
    if len(request.url.query) > _LONGEST_QUESTION:
        return _json(json.dumps({"error": f"the question is longer than {_LONGEST_QUESTION:,} characters."}), 414)
    try:
        return _json(await request.app.state.answers.get(name, dict(request.query_params)))
    except Refused as refused:
        return _json(json.dumps({"error": str(refused)}, ensure_ascii=False), refused.status)


def _json(content: bytes | str, status: int = 200) -> Response:
    return Response(content, status, media_type="application/json")


def serve(port: int, state: str, *, open_browser: bool = False) -> None:
    """Serve until interrupted; the address is printed once it listens.

    Args:
        port: Port on this machine; 0 for one that is free.
        state: What the page starts with, as the query of its address.
        open_browser: Whether to open the page in the browser.
    """
    import uvicorn

    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
    except OSError as error:
        listener.close()
        raise SettingError(
            f"port {port} on {HOST} is not free ({error.strerror}): choose another with --port."
        ) from None
    with listener:
        listener.listen()
        address = f"http://{HOST}:{listener.getsockname()[1]}/{state}"
        print(address, flush=True)
        if open_browser:
            webbrowser.open(address)
        config = uvicorn.Config(application(), log_level="warning", server_header=False, limit_concurrency=128)
        uvicorn.Server(config).run(sockets=[listener])

"""The server of the page: on this machine alone, for pages of its own alone, one question after another."""

from __future__ import annotations

import json
import webbrowser
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingTCPServer
from threading import Lock
from typing import ClassVar
from urllib.parse import parse_qsl, urlsplit

from resolvent.errors import SettingError, shortened
from resolvent.explore.answers import ANSWERS, answer

HOST = "127.0.0.1"
PAGE = Path(__file__).parent / "page"
_NAMES = ("127.0.0.1", "localhost", "::1")
_LONGEST_QUESTION = 4096  # characters
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-cache",
}


class Handler(BaseHTTPRequestHandler):
    """The page at /, its files at /page/NAME, and the library's answers at /api/NAME."""

    protocol_version = "HTTP/1.1"
    asked: ClassVar[Lock] = Lock()  # what the library caches is not made for several threads

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        file = PAGE / ("index.html" if path == "/" else path.removeprefix("/page/"))
        if (reason := self._refusal(path)) is not None:
            self._reply(403, "text/plain", reason.encode())
        elif path.startswith("/api/"):
            status, content = self._answer(path.removeprefix("/api/"))
            self._reply(status, "application/json", json.dumps(content, allow_nan=False, ensure_ascii=False).encode())
        elif file in PAGE.iterdir():
            self._reply(200, _TYPES[file.suffix], file.read_bytes())
        else:
            self._reply(404, "text/plain", b"there is no such page.")

    def _refusal(self, path: str) -> str | None:
        """Why a request is refused that a page of this server did not make: by another name, origin or site."""
        host, origin = self.headers.get("host", ""), self.headers.get("origin")
        if _name(f"//{host}") not in _NAMES:
            return f"expected this machine as the host, such as {HOST}, got {host[:80]!r}."
        if origin is not None and origin != f"http://{host}":
            return f"expected a page of this server, got one of {origin[:80]!r}."
        if path != "/" and self.headers.get("sec-fetch-site") not in (None, "same-origin", "none"):
            return "expected a page of this server, got another site."
        return None

    def _answer(self, name: str) -> tuple[int, object]:
        """An answer, or the library's own words for what is wrong."""
        query = urlsplit(self.path).query
        if name not in ANSWERS:
            return 404, {"error": "there is no such question."}
        if len(query) > _LONGEST_QUESTION:
            return 414, {"error": f"the question is longer than {_LONGEST_QUESTION:,} characters."}
        try:
            with self.asked:
                return 200, answer(name, dict(parse_qsl(query, keep_blank_values=True)))
        except MemoryError:
            return 503, {"error": "this takes too much memory: choose a shorter length or a simpler pattern."}
        except (ValueError, ImportError) as error:
            return 400, {"error": str(error)}
        except Exception as error:  # a defect of the library: the next question is answered all the same
            return 500, {"error": f"{type(error).__name__}: {shortened(str(error))}"}

    def _reply(self, status: int, kind: str, content: bytes) -> None:
        with suppress(ConnectionError):  # the browser has moved on
            self.send_response(status)
            headers = {"content-type": f"{kind}; charset=utf-8", "content-length": str(len(content))}
            for name, value in (headers | _HEADERS).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Say nothing: requests are not worth a line each."""


def _name(address: str) -> str | None:
    try:
        return urlsplit(address).hostname
    except ValueError:
        return None


class Server(ThreadingTCPServer):
    """A thread for each connection; none keeps the process from ending."""

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 64


def serve(port: int, state: str, *, open_browser: bool = False) -> None:
    """Serve until interrupted; the address is printed once it listens.

    Args:
        port: Port on this machine; 0 for one that is free.
        state: What the page starts with, as the query of its address.
        open_browser: Whether to open the page in the browser.
    """
    try:
        server = Server((HOST, port), Handler)
    except OSError as error:
        raise SettingError(
            f"port {port} on {HOST} is not free ({error.strerror}): choose another with --port."
        ) from None
    with server, suppress(KeyboardInterrupt):
        address = f"http://{HOST}:{server.server_address[1]}/{state}"
        print(address, flush=True)
        if open_browser:
            webbrowser.open(address)
        server.serve_forever()

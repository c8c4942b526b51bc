"""The server: what it serves, what it refuses, and that questions are bounded."""

import http.client
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from threading import Thread
from typing import Any, NamedTuple
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
from typer.testing import CliRunner

from resolvent.cli import app as commands
from resolvent.explore import server


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    text: str

    def json(self) -> Any:
        return json.loads(self.text)


class Client:
    """Asks a server on a port; paths are sent as they are."""

    def __init__(self, port: int) -> None:
        self.port = port

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def get(
        self, path: str, headers: dict[str, str] | None = None, *, method: str = "GET", **question: object
    ) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        connection.request(method, path + ("?" + urlencode(question) if question else ""), headers=headers or {})
        answer = connection.getresponse()
        named = {name.lower(): value for name, value in answer.getheaders()}
        reply = Reply(answer.status, named, answer.read().decode())
        connection.close()
        return reply


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with server.Server((server.HOST, 0), server.Handler) as listening:
        Thread(target=listening.serve_forever, daemon=True).start()
        yield Client(listening.server_address[1])
        listening.shutdown()


def test_the_page_and_all_that_it_loads(client: Client) -> None:
    page = client.get("/")
    assert page.status == 200
    assert "resolvent explorer" in page.text
    assert "default-src 'none'" in page.headers["content-security-policy"]
    for file in sorted(server.PAGE.iterdir()):
        assert client.get(f"/page/{file.name}").text == file.read_text(encoding="utf-8")
    assert "http://" not in page.text.replace("http://www.w3.org", "")
    assert "https://" not in page.text


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"p": "exponental", "n": "64"}, "Did you mean 'exponential'?"),
        ({"p": "dense", "n": "99999999999999999999"}, "n is too long for this: expected at most 4,096 tokens"),
        ({"p": "stride:(lambda: 1)()", "n": "64"}, "is not allowed in"),
        ({}, "expected the parameter 'p', got none"),
    ],
)
def test_bad_questions_get_the_words_of_the_library(client: Client, query: dict[str, str], message: str) -> None:
    answer = client.get("/api/scene", **query)
    assert answer.status == 400
    assert message in answer.json()["error"]


def test_a_size_beyond_all_positions_is_like_dense(client: Client) -> None:
    huge, dense = (client.get("/api/scene", p=p, n=16).json() for p in ("order:9" + 29 * "9", "dense"))
    assert huge["entries"] == dense["entries"]
    assert huge["stages"] == dense["stages"]


def test_a_defect_is_an_answer_and_not_the_end(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    for error, status, words in ((KeyError("p"), 500, "KeyError"), (MemoryError(), 503, "takes too much memory")):

        def fail(_: object, error: BaseException = error) -> None:
            raise error

        monkeypatch.setitem(server.ANSWERS, "scene", fail)
        answer = client.get("/api/scene")
        assert answer.status == status
        assert words in answer.json()["error"]
    assert client.get("/api/paths", p="order:2", n=16, to=15).json()["to"] == 15


def test_questions_are_short_and_known(client: Client) -> None:
    assert client.get("/api/scene", p="k" * 5000, n=4).status == 414
    assert client.get("/api/__import__").status == 404
    assert client.get("/page/../answers.py").status == 404
    assert client.get("/page/%2e%2e/answers.py").status == 404
    assert client.get("/api/scene", method="POST").status == 501


def test_other_hosts_origins_and_sites_are_refused(client: Client) -> None:
    for headers in [
        {"host": "attacker.example:8642"},
        {"host": "127.0.0.1.attacker.example"},
        {"host": "0.0.0.0:8642"},
        {"host": "[::"},
        {"origin": "https://attacker.example"},
        {"origin": "http://127.0.0.1:9999"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ]:
        answer = client.get("/api/catalogue", headers)
        assert answer.status == 403
        assert "expected" in answer.text
        assert "access-control-allow-origin" not in answer.headers


def test_its_own_page_is_answered(client: Client) -> None:
    for headers in [
        {"host": "localhost:{}"},
        {"host": "[::1]:{}"},
        {"origin": "http://127.0.0.1:{}"},
        {"sec-fetch-site": "same-origin"},
        {"sec-fetch-site": "none"},
    ]:
        own = {name: value.format(client.port) for name, value in headers.items()}
        assert client.get("/api/catalogue", own).status == 200


def test_a_link_elsewhere_may_lead_to_the_page(client: Client) -> None:
    assert client.get("/", {"sec-fetch-site": "cross-site"}).status == 200


def test_it_listens_on_this_machine_alone() -> None:
    """The command itself: its address, an answer, and nothing at other addresses of this machine."""
    command = [sys.executable, "-m", "resolvent", "explore", "order:2", "--n", "32", "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:")
        assert address.endswith("/?p=order%3A2&n=32")
        with urlopen(address) as page:
            assert b"resolvent explorer" in page.read()
        port = int(address.split(":")[2].split("/")[0])
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as other:  # another address of this machine is free
            other.bind(("127.0.0.2", port))
    finally:
        process.terminate()
        process.communicate()


def test_a_port_in_use_is_said() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = CliRunner().invoke(commands, ["explore", "--port", str(taken.getsockname()[1])])
    assert "choose another with --port" in str(done.exception)


def test_the_command_refuses_what_the_page_cannot_show() -> None:
    for arguments, message in (
        (["explore", "--n", "8k"], "expected n ≤ 4,096, got 8,192"),
        (["explore", *(f"order:{k}" for k in range(1, 11))], "expected at most 9 patterns, got 10"),
        (["explore", "expnential"], "Did you mean 'exponential'?"),
        (["explore", "--export", "page.png"], "expected a file name that ends in .html"),
    ):
        done = CliRunner().invoke(commands, arguments)
        assert message in str(done.exception), arguments

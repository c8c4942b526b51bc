"""The server: what it serves, what it refuses, and that questions are bounded."""

import asyncio
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

pytest.importorskip("starlette", reason="the explorer needs the extra 'explore'")
pytest.importorskip("uvicorn", reason="the explorer needs the extra 'explore'")

from starlette.testclient import TestClient
from typer.testing import CliRunner

from resolvent.cli import app as commands
from resolvent.explore import server
from resolvent.explore.answers import ANSWERS
from resolvent.explore.worker import Refused, Worker, answer_line

HERE = "http://127.0.0.1:8642"


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with TestClient(server.application(), base_url=HERE) as client:
        yield client


def test_the_page_and_all_that_it_loads(client: TestClient) -> None:
    page = client.get("/")
    assert page.status_code == 200
    assert "resolvent explorer" in page.text
    assert "default-src 'none'" in page.headers["content-security-policy"]
    for file in sorted(server.PAGE.iterdir()):
        assert client.get(f"/page/{file.name}").text == file.read_text(encoding="utf-8")
    assert "http://" not in page.text.replace("http://www.w3.org", "")
    assert "https://" not in page.text


def test_answers_come_from_the_library_and_are_kept(client: TestClient) -> None:
    first = client.get("/api/paths", params={"p": "order:2", "n": 16, "to": 15})
    assert first.status_code == 200
    assert first.json()["to"] == 15
    assert client.get("/api/paths?to=15&n=16&p=order:2").content == first.content


def test_every_question_has_a_worker() -> None:
    assert sorted(server._LANE_OF) == sorted(ANSWERS)
    assert set(server._LANE_OF.values()) | {"searches"} == set(server._LANES)
    for lane, (_, name, question) in server._LANES.items():
        assert server.lane_of(name, question) == lane


def test_a_long_question_keeps_no_other_waiting() -> None:
    """A design of many tokens is searched for while all else is answered."""

    async def asked() -> list[str]:
        answers, order = server.Answers(), list[str]()
        for worker in answers._workers.values():
            worker.seconds = 600  # on a machine that is busy

        async def drawn(n: str) -> None:
            await answers.get("scene", {"p": "order:2", "n": n})
            await answers.get("load", {"p": "order:2", "n": n, "effort": "quick"})
            order.append("drawn")

        async def designed() -> None:
            await answers.get("designs", {"n": "131072", "slots": "64", "heads": "12"})
            order.append("designed")

        await drawn("64")  # with all that is loaded before a first answer
        search = asyncio.create_task(designed())
        await asyncio.sleep(0)  # it is asked before the next
        await drawn("48")
        await search
        await answers.stop()
        return order

    assert asyncio.run(asked()) == ["drawn", "drawn", "designed"]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"p": "exponental", "n": "64"}, "Did you mean 'exponential'?"),
        ({"p": "dense", "n": "99999999999999999999"}, "n is too long for this: expected at most 4,096 tokens"),
        ({"p": "stride:(lambda: 1)()", "n": "64"}, "is not allowed in"),
        ({"p": "stride:k**999**999**999", "n": "64"}, "bits"),
        ({"p": "explicit:AAAA", "n": "64"}, "expected"),
        ({}, "expected the parameter 'p', got none"),
    ],
)
def test_bad_questions_get_the_words_of_the_library(client: TestClient, query: dict[str, str], message: str) -> None:
    answer = client.get("/api/scene", params=query)
    assert answer.status_code == 400
    assert message in answer.json()["error"]


def test_a_size_beyond_all_positions_is_like_dense(client: TestClient) -> None:
    huge, dense = (client.get("/api/scene", params={"p": p, "n": 16}).json() for p in ("order:9" + 29 * "9", "dense"))
    assert huge["entries"] == dense["entries"]
    assert huge["stages"] == dense["stages"]


def test_questions_are_short_and_known(client: TestClient) -> None:
    assert client.get("/api/scene", params={"p": "k" * 5000, "n": 4}).status_code == 414
    assert client.get("/api/__import__").status_code == 404
    assert client.get("/page/../answers.py").status_code == 404
    assert client.get("/page/%2e%2e/answers.py").status_code == 404
    assert client.post("/api/scene").status_code == 405


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "attacker.example:8642"},
        {"host": "127.0.0.1.attacker.example"},
        {"host": "0.0.0.0:8642"},
        {"host": "[::"},
        {"origin": "https://attacker.example"},
        {"origin": "http://127.0.0.1:9999"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_other_hosts_origins_and_sites_are_refused(client: TestClient, headers: dict[str, str]) -> None:
    answer = client.get("/api/catalogue", headers=headers)
    assert answer.status_code == 403
    assert "expected" in answer.text
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "localhost:8642"},
        {"host": "[::1]:8642"},
        {"origin": HERE},
        {"sec-fetch-site": "same-origin"},
        {"sec-fetch-site": "none"},
    ],
)
def test_its_own_page_is_answered(client: TestClient, headers: dict[str, str]) -> None:
    assert client.get("/api/catalogue", headers=headers).status_code == 200


def test_a_link_elsewhere_may_lead_to_the_page(client: TestClient) -> None:
    assert client.get("/", headers={"sec-fetch-site": "cross-site"}).status_code == 200


def test_a_question_that_takes_too_long_ends_its_process_and_not_the_next_question() -> None:
    async def asked() -> tuple[Refused, str]:
        worker = Worker(seconds=1e-3, megabytes=4096)
        with pytest.raises(Refused) as refused:
            await worker.ask("curves", {"p": "quadratic"})
        worker.seconds = 120
        answer = await worker.ask("paths", {"p": "dense", "n": "4", "to": "3"})
        await worker.stop()
        return refused.value, answer

    refused, answer = asyncio.run(asked())
    assert refused.status == 503
    assert "takes longer than 0.001 seconds: choose a shorter length or a simpler pattern" in str(refused)
    assert '"to": 3' in answer


def test_a_question_that_takes_too_much_memory_is_refused() -> None:
    """In a process with little, of which the library itself takes most."""
    code = """
import resource
from resolvent.explore import worker
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize() >> 20
worker.limit_memory(size + 8)
print(worker.answer_line('["scene", {"p": "dense", "n": "4096"}]'))
"""
    if not Path("/proc/self/statm").exists():
        pytest.skip("the size of a process is read from /proc")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.startswith('503 "this takes too much memory'), done.stderr


def test_too_many_questions_at_once_are_refused() -> None:
    async def asked() -> list[str | BaseException]:
        worker = Worker(seconds=120, megabytes=4096)
        questions = [worker.ask("paths", {"p": "dense", "n": "4", "to": "3"}) for _ in range(70)]
        answers = await asyncio.gather(*questions, return_exceptions=True)
        await worker.stop()
        return answers

    answers = asyncio.run(asked())
    refused = [each for each in answers if isinstance(each, Refused)]
    assert len(refused) == 6
    assert "too many questions at once" in str(refused[0])


def test_a_line_is_answered_in_a_line() -> None:
    assert answer_line('["scene", {"p": "nothing", "n": "4"}]').startswith("400 ")
    assert "\n" not in answer_line('["catalogue", {}]')


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


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "resolvent.explore.server")
    monkeypatch.setitem(sys.modules, "starlette.applications", None)
    done = CliRunner().invoke(commands, ["explore"])
    assert "pip install starlette uvicorn" in str(done.exception)

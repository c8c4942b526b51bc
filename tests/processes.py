"""Python in processes of their own that need not import anything: a server of each test worker forks them.

`run("-c", code, ...)` and `run("-m", module, ...)` are what `subprocess.run([sys.executable, ...])` would be, without
the seconds that imports take: for tests of what a process does to itself (memory, limits, its end in the middle).
Start a real one where a fresh interpreter is what is tested: imports, encodings, variables that are read when torch or
Numba are imported, `PYTHON*`, signals of a shell. The server itself computes nothing: threads do not survive a fork.
"""

import atexit
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import subprocess
import sys
import tempfile
import traceback
import types
from functools import cache
from pathlib import Path
from typing import NoReturn

_LOADED = ("resolvent.cli", "resolvent.model", "resolvent.train", "safetensors.torch", "torch")


def run(
    *arguments: str, stdin: str = "", cwd: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """What Python prints for these arguments, and its exit code, in this folder and with these variables besides."""
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    json.dump([arguments, stdin, str(cwd or Path.cwd()), os.environ | environment], server.stdin)
    server.stdin.write("\n")
    server.stdin.flush()
    return subprocess.CompletedProcess(arguments, *json.loads(server.stdout.readline()))


@cache
def _server() -> subprocess.Popen[str]:
    """Of this process: it ends with it, when nobody can write to its input any more."""
    server = subprocess.Popen([sys.executable, "-m", "tests.processes"], cwd=Path(__file__).parents[1], text=True,
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip
    atexit.register(server.communicate)
    return server


def _serve() -> None:
    for name in _LOADED:
        importlib.import_module(name)
    gc.freeze()
    for line in sys.stdin:
        print(json.dumps(_answer(*json.loads(line))), flush=True)


def _answer(arguments: list[str], stdin: str, cwd: str, environment: dict[str, str]) -> tuple[int, str, str]:
    """Exit code, output and errors. Through pipes, which limits on the size of files do not touch."""
    with tempfile.TemporaryFile() as given:
        given.write(stdin.encode())
        given.seek(0)
        (out, out_end), (err, err_end) = os.pipe(), os.pipe()
        child = os.fork()
        if child == 0:
            for descriptor, stream in enumerate((given.fileno(), out_end, err_end)):
                os.dup2(stream, descriptor)
            _become(arguments, cwd, environment)
    os.close(out_end)
    os.close(err_end)
    text = {out: b"", err: b""}
    with selectors.DefaultSelector() as selector:
        for stream in text:
            selector.register(stream, selectors.EVENT_READ)
        while selector.get_map():
            for key, _ in selector.select():
                if read := os.read(key.fd, 1 << 16):
                    text[key.fd] += read
                else:
                    selector.unregister(key.fd)
                    os.close(key.fd)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), text[out].decode(), text[err].decode()


def _become(arguments: list[str], cwd: str, environment: dict[str, str]) -> NoReturn:
    """The process that these arguments ask for."""
    sys.stdin, sys.stdout, sys.stderr = (open(i, mode, closefd=False) for i, mode in enumerate("rww"))  # noqa: SIM115
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[0] = ""
    code = _status_of(arguments)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _status_of(arguments: list[str]) -> int:
    flag, program, *rest = arguments
    sys.argv = [flag, *rest]
    try:
        if flag == "-m":
            runpy.run_module(program, run_name="__main__", alter_sys=True)
        else:
            sys.modules["__main__"] = module = types.ModuleType("__main__")
            exec(compile(program, "<string>", "exec"), module.__dict__)
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    _serve()

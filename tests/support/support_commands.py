"""Runs the command line in forks of a process that has already imported it.

Starting Python, importing the command line, Arrow and pandas, and ending Python takes ten times as long as most
commands. A fork is a separate process that shares the imported modules. Tests of how a process starts, or how a signal
ends it, start one themselves.
"""

from __future__ import annotations

import atexit
import functools
import gc
import json
import os
import socket
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any, NoReturn

LIMIT_S = 120
"""Time limit of a command."""


def run_command(
    *arguments: object, stdin: str | None = None, env: dict[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run ``chronotile ARGUMENT...`` as `subprocess.run` would, with text and captured output. `env` extends
    `os.environ`.
    """
    surroundings = {name: value for name, value in os.environ.items() if name != "CHRONOTILE_ARCHIVE"} | (env or {})
    words = [str(argument) for argument in arguments]
    code, out, err = _server().run(words, (stdin or "").encode(), surroundings, cwd or Path.cwd())
    return subprocess.CompletedProcess(["chronotile", *words], code, out, err)


@functools.cache
def _server() -> _Server:
    server = _Server()
    atexit.register(server.close)
    return server


class _Server:
    def __init__(self) -> None:
        self._calls, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, __file__, str(theirs.fileno())]
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])

    def close(self) -> None:
        self._calls.close()
        self._process.wait(timeout=LIMIT_S)

    def run(self, words: list[str], given: bytes, environment: dict[str, str], folder: Path) -> tuple[int, str, str]:
        call = json.dumps({"words": words, "environment": environment, "folder": str(folder)}).encode()
        (stdin, to_stdin), (from_stdout, stdout), (from_stderr, stderr) = (os.pipe() for _ in range(3))
        ended, to_ended = os.pipe()
        theirs = [stdin, stdout, stderr, to_ended]
        socket.send_fds(self._calls, [call], theirs)
        for end in theirs:
            os.close(end)
        read: dict[int, bytes] = {}
        threads = [
            threading.Thread(target=_write, args=(to_stdin, given), daemon=True),
            *(
                threading.Thread(target=_read, args=(end, read), daemon=True)
                for end in (from_stdout, from_stderr, ended)
            ),
        ]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + LIMIT_S
        for thread in threads:
            thread.join(max(0, deadline - time.monotonic()))
        if len(read) < 3:
            raise subprocess.TimeoutExpired(["chronotile", *words], LIMIT_S)
        return int(read[ended]), read[from_stdout].decode(), read[from_stderr].decode()


def _write(end: int, given: bytes) -> None:
    try:
        with open(end, "wb") as pipe:
            pipe.write(given)
    except BrokenPipeError:
        pass  # The command ended before reading all input.


def _read(end: int, read: dict[int, bytes]) -> None:
    with open(end, "rb") as pipe:
        read[end] = pipe.read()


# ---------------------------------------------------------------- the server process and its forks


def _serve(calls: socket.socket) -> None:
    import click
    import pyarrow as pa

    from chronotile.cli.main import cli

    context = click.Context(cli)
    for name in cli.list_commands(context):
        cli.get_command(context, name)
    pa.array([0])  # This makes Arrow import pandas.
    # Garbage collections in forks would write to, and so copy, every page of imported modules.
    gc.collect()
    gc.freeze()
    while True:
        message, ends, _, _ = socket.recv_fds(calls, 1 << 20, 4)
        if not message:
            return
        if os.fork() == 0:
            calls.close()
            _watch(json.loads(message), *ends)
        for end in ends:
            os.close(end)
        _reap()


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def _watch(call: dict[str, Any], stdin: int, stdout: int, stderr: int, ended: int) -> NoReturn:
    """Run a command in another fork and report its exit code, which only a parent process can read."""
    pid = os.fork()
    if pid == 0:
        os.close(ended)
        for number, end in enumerate((stdin, stdout, stderr)):
            os.dup2(end, number)
            os.close(end)
        _run(call)
    for end in (stdin, stdout, stderr):
        os.close(end)
    os.write(ended, str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())
    os._exit(0)


def _run(call: dict[str, Any]) -> NoReturn:
    from chronotile.cli import main

    os.environ.clear()
    os.environ.update(call["environment"])
    time.tzset()
    os.chdir(call["folder"])
    sys.argv = ["chronotile", *call["words"]]
    code: object = 1
    try:
        main()
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    # Skip the interpreter's cleanup, which takes longer than most commands.
    os._exit(code if isinstance(code, int) else int(code is not None))


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as connection:
        _serve(connection)

"""A user's shell: runs commands one after another in a folder, and checks their exit codes."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path
from typing import Any

Run = Callable[..., subprocess.CompletedProcess[str]]


class Shell:
    """Runs commands in one folder; each must exit with the expected code."""

    def __init__(self, run: Run, folder: Path) -> None:
        self._run, self.folder = run, folder
        self.errors = ""

    def __call__(self, *arguments: object, code: int = 0, stdin: str | None = None, **env: str) -> str:
        done = self._run(*arguments, cwd=self.folder, stdin=stdin, env=env)
        assert done.returncode == code, f"{arguments} ended with {done.returncode}\n{done.stdout}{done.stderr}"
        self.errors = done.stderr
        return done.stdout

    def json(self, *arguments: object, code: int = 0) -> Any:
        return json.loads(self(*arguments, "--json", code=code))

    def write(self, name: str, text: str) -> str:
        (self.folder / name).write_bytes(text.encode())
        return name

    @property
    def files(self) -> set[str]:
        return {path.name for path in self.folder.iterdir()}


def on_terminal(shell: Shell, columns: int, *arguments: object) -> str:
    """The output of a command on a terminal of this width."""
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    command = [sys.executable, "-m", "chronotile", *map(str, arguments)]
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    with subprocess.Popen(command, cwd=shell.folder, stdout=terminal, stderr=terminal, env=environment) as process:
        os.close(terminal)
        shown = b""
        while True:
            try:
                more = os.read(controller, 65_536)
            except OSError:  # the other side is closed
                break
            if not more:
                break
            shown += more
        process.wait(60)
    os.close(controller)
    assert process.returncode == 0, shown
    return shown.decode().replace("\r\n", "\n")

"""A service as users run it, in a process on a free port, and a plain HTTP client."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import ssl
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlencode, urlsplit


@dataclass
class Answer:
    """An HTTP response."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        return dict(self.json["error"])


class Service:
    """`chronotile serve` in a separate process, which logs to file `log`. `program` replaces the command that Python
    runs; the process calls `limits` before it starts Python."""

    def __init__(
        self,
        archive: str | Path,
        log: Path,
        *options: str,
        listen: str = "127.0.0.1:0",
        program: tuple[str, ...] = ("-m", "chronotile"),
        limits: Callable[[], None] | None = None,
    ) -> None:
        self.log_path = log
        command = [sys.executable, *program, "serve", str(archive), "--create", "--listen", listen, *options]
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=out, text=True, env={**os.environ, "NO_COLOR": "1"},
                preexec_fn=limits,
            )  # fmt: skip
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.fullmatch(r"listening on (https?://\S+)\n", line)
        if found is None:
            self.process.communicate(timeout=30)
            raise AssertionError(f"the service did not start: {line!r}\n{log.read_text()}")
        self.url = found[1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    @property
    def port(self) -> int:
        port = urlsplit(self.url).port
        assert port is not None
        return port

    def log(self) -> list[dict[str, Any]]:
        """The lines of the log so far."""
        return [json.loads(line) for line in self.log_path.read_text().splitlines()]

    def memory(self, name: str = "VmRSS") -> int:
        """A memory figure from /proc/PID/status, in bytes."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return 1024 * int(next(line for line in lines if line.startswith(f"{name}:")).split()[1])

    def stop(self) -> int:
        """Stop the service with SIGTERM; returns its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)

    def ask(
        self,
        method: str,
        path: str,
        parameters: list[tuple[str, str]] | dict[str, str] | None = None,
        body: bytes | str | object = None,
        headers: dict[str, str] | None = None,
        ca: Path | None = None,
    ) -> Answer:
        """Send one request on a new connection. Objects are sent as JSON."""
        sent: bytes | str | None = body if isinstance(body, bytes | str) else None if body is None else json.dumps(body)
        heads = {**({} if body is None or isinstance(body, bytes | str) else {"Content-Type": "application/json"})}
        connection: http.client.HTTPConnection
        if ca is None:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        else:
            context = ssl.create_default_context(cafile=str(ca))
            connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=60, context=context)
        try:
            target = path + (f"?{urlencode(parameters)}" if parameters else "")
            connection.request(method, target, sent, heads | (headers or {}))
            answer = connection.getresponse()
            return Answer(answer.status, answer.headers, answer.read())
        finally:
            connection.close()

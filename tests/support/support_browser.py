"""A headless browser, controlled through its debugging protocol over a pipe."""

from __future__ import annotations

import base64
import itertools
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, Self

NAMES = ("chromium", "chromium-headless-shell", "chromium-browser", "google-chrome", "chrome")


def find_browser() -> str | None:
    """The path of a Chromium on this machine."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One page of a headless Chromium."""

    def __init__(self, program: str, profile: Path) -> None:
        to_read, self._to = os.pipe()
        self._from, to_write = os.pipe()
        command = [program, "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run",
                   f"--user-data-dir={profile}", "--window-size=1280,1000", "about:blank"]  # fmt: skip

        def pipes() -> None:
            # The browser reads commands from descriptor 3 and answers on 4. Duplicate first: the pipes may be 3 or 4.
            reader, writer = os.dup(to_read), os.dup(to_write)
            os.dup2(reader, 3)
            os.dup2(writer, 4)

        self.process = subprocess.Popen(
            command, preexec_fn=pipes, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(to_read)
        os.close(to_write)
        self._numbers = itertools.count(1)
        self._buffer = b""
        self.messages: list[dict[str, Any]] = []
        target = self._call("Target.createTarget", {"url": "about:blank"}, None)["targetId"]
        self._session = self._call("Target.attachToTarget", {"targetId": target, "flatten": True}, None)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._to)
        os.close(self._from)

    def _call(self, method: str, parameters: dict[str, Any], session: str | None) -> dict[str, Any]:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        message |= {} if session is None else {"sessionId": session}
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self._buffer:
                piece = os.read(self._from, 1 << 16)
                assert piece, "the browser has ended"
                self._buffer += piece
            text, _, self._buffer = self._buffer.partition(b"\0")
            answer = json.loads(text)
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return dict(answer["result"])
            self.messages.append(answer)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command of the debugging protocol to the page."""
        return self._call(method, parameters, self._session)

    def run(self, script: str) -> Any:
        """Evaluate an expression in the page and await it if it is a promise."""
        answer = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        """Press a named key, or type one character."""
        codes = {"Tab": 9, "Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
        special: dict[str, int | str] = {"windowsVirtualKeyCode": codes[key]} if key in codes else {"text": key}
        if key == "Enter":
            special |= {"text": "\r"}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **special)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, **({} if key not in codes else special))

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """Drag the mouse from one position to another."""
        for kind, (x, y), buttons in (("mousePressed", start, 1), ("mouseMoved", end, 1), ("mouseReleased", end, 0)):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=buttons, clickCount=1)

    def screenshot(self, path: Path) -> None:
        """Save a screenshot of the whole page."""
        picture = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(picture["data"]))

    def complaints(self) -> list[str]:
        """Exceptions and log entries of the page."""
        events = [m for m in self.messages if m.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded")]
        return [json.dumps(message["params"]) for message in events]

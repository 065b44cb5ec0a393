"""Runs the code in the documentation and checks its links.

Pages are the Markdown files at the repository's root and under docs/. In each page the fenced blocks run from top to
bottom in a new folder, against the installed package:

- ```python: all blocks of a page run in one session.
- ```console: each line that starts with `$ ` runs in bash (a backslash at its end continues it on the next line). Its
  output must equal the lines below it, except for trailing spaces; `...` matches any text, including line breaks, and a
  command without output lines may print anything. It must succeed, unless the last output line is `[exit N]`.
- ```bash: the whole block runs as a script with `set -eu`.

A comment `<!-- not run: reason -->` above a block skips it, which is reported. Blocks in other languages are not run.

`python scripts/check_docs.py [--links-only] [FILE...]` checks the given files, or every page.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

BLOCK_SECONDS_MAX = 300
RUNNABLE = frozenset({"python", "console", "bash"})

_FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>`{3,}|~{3,})\s*(?P<language>[\w+-]*)")
_NOT_RUN = re.compile(r"<!--\s*not run:\s*(?P<reason>.*?)\s*-->")
_EXIT = re.compile(r"\[exit (?P<status>\d+)\]")
LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\((?P<target>[^()\s]+(?:\([^()\s]*\))?)(?:\s+\"[^\"]*\")?\)")
_HTML_LINK = re.compile(r"\b(?:src|srcset|href)=\"(?P<target>[^\"]+)\"")
_HTML_ANCHOR = re.compile(r"<a\s+(?:id|name)=\"(?P<anchor>[^\"]+)\"")
_HEADING = re.compile(r"^#{1,6}\s+(?P<text>.+?)\s*#*$")
_CODE_SPAN = re.compile(r"(`+)(.+?)\1")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: Path
    line: int
    """Line number of its first line of code, from 1."""
    language: str
    code: str
    not_run: str | None
    """Why it is skipped; None for a block that runs."""

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"


@dataclass(frozen=True)
class Command:
    """A command of a console block, with the output that the page shows."""

    line: int
    text: str
    output: str
    status: int


class BlockError(Exception):
    """A block failed or did not print what the page shows."""


def read_blocks(page: Path, text: str) -> Iterator[Block]:
    """The fenced blocks of a page. Raises BlockError if a block is never closed."""
    lines = text.splitlines()
    reason: str | None = None
    number = 0
    while number < len(lines):
        opening = _FENCE.match(lines[number])
        if opening is None:
            comment = _NOT_RUN.search(lines[number])
            if comment:
                reason = comment["reason"]
            elif lines[number].strip():
                reason = None
            number += 1
            continue
        indent = len(opening["indent"])
        start = end = number + 1
        while end < len(lines) and not _closes(lines[end], opening["ticks"]):
            end += 1
        if end == len(lines):
            raise BlockError(f"{page}:{number + 1}: this block is never closed")
        code = "\n".join(line[min(indent, len(line) - len(line.lstrip(" "))) :] for line in lines[start:end])
        yield Block(page, start + 1, opening["language"], code, reason)
        reason = None
        number = end + 1


def _closes(line: str, ticks: str) -> bool:
    stripped = line.strip()
    return len(stripped) >= len(ticks) and set(stripped) == {ticks[0]}


def read_commands(block: Block) -> Iterator[Command]:
    """The commands of a console block."""
    lines = block.code.splitlines()
    number = 0
    while number < len(lines):
        first = number
        if not lines[number].startswith("$ "):
            if lines[number].strip():
                raise BlockError(f"{block.page}:{block.line + number}: output before the first command")
            number += 1
            continue
        text = lines[number][2:]
        number += 1
        while text.endswith("\\") and number < len(lines):
            text += "\n" + lines[number].removeprefix("> ")
            number += 1
        output = []
        while number < len(lines) and not lines[number].startswith("$ "):
            output.append(lines[number])
            number += 1
        while output and not output[-1].strip():
            output.pop()
        ends = _EXIT.fullmatch(output[-1].strip()) if output else None
        status = int(ends["status"]) if ends else 0
        yield Command(block.line + first, text, "\n".join(output[:-1] if ends else output), status)


def fits(expected: str, actual: str) -> bool:
    """Whether `actual` matches the output on the page, in which `...` matches anything; ignores trailing spaces."""
    if not expected.strip():
        return True
    parts = [re.escape(part) for part in _trimmed(expected).split("...")]
    return re.fullmatch(".*?".join(parts), _trimmed(actual), re.DOTALL) is not None


def _trimmed(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip("\n").splitlines()).rstrip()


_SESSION = """
import ast, json, sys, traceback
answers = open(int(sys.argv[1]), "w")
session = {"__name__": "__main__"}
for request in sys.stdin:
    block = json.loads(request)
    try:
        tree = ast.parse(block["code"], block["file"])
        ast.increment_lineno(tree, block["line"] - 1)
        exec(compile(tree, block["file"], "exec"), session)
        error = None
    except BaseException:
        error = traceback.format_exc()
    sys.stdout.flush()
    print(json.dumps(error), file=answers, flush=True)
"""


class Session:
    """The folder and the Python process that the blocks of one page share."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "COLUMNS": "120",
            "NO_COLOR": "1",
            "TZ": "UTC",
            "LC_ALL": "C.UTF-8",
        }
        answers, answers_write = os.pipe()
        self._answers = os.fdopen(answers)
        self._python = subprocess.Popen(
            [sys.executable, "-c", _SESSION, str(answers_write)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            cwd=folder,
            env=self._environment,
            pass_fds=[answers_write],
        )
        os.close(answers_write)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self._python.kill()
        self._python.communicate()
        self._answers.close()

    def run(self, block: Block) -> None:
        """Run a block. Raises BlockError if it fails or does not print what the page shows."""
        if block.language == "python":
            self._run_python(block)
        elif block.language == "bash":
            self._run_shell(block.where, f"set -eu\n{block.code}", "", 0)
        else:
            for command in read_commands(block):
                self._run_shell(f"{block.page}:{command.line}", command.text, command.output, command.status)

    def _run_python(self, block: Block) -> None:
        request = {"code": block.code, "line": block.line, "file": str(block.page)}
        assert self._python.stdin is not None
        try:
            self._python.stdin.write(json.dumps(request) + "\n")
            self._python.stdin.flush()
        except BrokenPipeError:
            raise BlockError(f"{block.where}: an earlier block ended the Python session") from None
        answer = self._answers.readline()
        if not answer:
            raise BlockError(f"{block.where}: the Python session ended with status {self._python.wait()}")
        error = json.loads(answer)
        if error is not None:
            raise BlockError(f"{block.where}: the block raised\n{error}")

    def _run_shell(self, where: str, script: str, expected: str, status: int) -> None:
        try:
            done = subprocess.run(
                ["bash", "-c", script],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                cwd=self._folder,
                env=self._environment,
                timeout=BLOCK_SECONDS_MAX,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise BlockError(f"{where}: took longer than {BLOCK_SECONDS_MAX} s: {script}") from None
        if done.returncode != status:
            raise BlockError(f"{where}: status {done.returncode} instead of {status}: {script}\n{done.stdout}")
        if not fits(expected, done.stdout):
            raise BlockError(f"{where}: {script}\n--- expected\n{expected}\n--- actual output\n{done.stdout}")


def run_page(page: Path, text: str) -> Iterator[str]:
    """Run the blocks of a page; yields problems. Stops at the first failure, because later blocks depend on it."""
    try:
        blocks = [block for block in read_blocks(page, text) if block.language in RUNNABLE]
    except BlockError as error:
        yield str(error)
        return
    for block in blocks:
        if block.not_run is not None:
            print(f"{block.where}: not run: {block.not_run or 'no reason given'}")
            if not block.not_run:
                yield f"{block.where}: is skipped without a reason"
    runnable = [block for block in blocks if block.not_run is None]
    if not runnable:
        return
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="chronotile-docs-") as folder, Session(Path(folder)) as session:
        for block in runnable:
            try:
                session.run(block)
            except BlockError as error:
                yield str(error)
                return
    print(f"{page}: {len(runnable)} blocks ran in {time.monotonic() - began:.0f} s")


def prose_lines(text: str) -> Iterator[tuple[int, str]]:
    """Numbered lines outside fenced blocks."""
    ticks: str | None = None
    for number, line in enumerate(text.splitlines(), 1):
        fence = _FENCE.match(line)
        if ticks is not None:
            if _closes(line, ticks):
                ticks = None
        elif fence:
            ticks = fence["ticks"]
        else:
            yield number, line


def anchors(text: str) -> set[str]:
    """The anchors of a page, made from its headings the way GitHub makes them, and its own `<a id>`."""
    found: set[str] = set()
    for _, line in prose_lines(text):
        found.update(match["anchor"] for match in _HTML_ANCHOR.finditer(line))
        heading = _HEADING.match(line)
        if heading is None:
            continue
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading["text"]).replace("`", "").lower()
        slug = base = re.sub(r"[^\w\- ]", "", plain).strip().replace(" ", "-")
        count = 0
        while slug in found:
            count += 1
            slug = f"{base}-{count}"
        found.add(slug)
    return found


def check_links(root: Path, page: Path, text: str) -> Iterator[str]:
    """Yields broken relative links of a page. External addresses are not checked."""
    for number, line in prose_lines(text):
        prose = _CODE_SPAN.sub("", line)
        targets = [match["target"] for pattern in (LINK, _HTML_LINK) for match in pattern.finditer(prose)]
        for target in targets:
            if re.match(r"[a-z][a-z0-9+.-]*:", target, re.IGNORECASE):
                continue
            path_part, _, anchor = unquote(target).partition("#")
            path = (page.parent / path_part).resolve() if path_part else page.resolve()
            if not path.is_relative_to(root.resolve()):
                yield f"{page}:{number}: the link {target} leaves the repository"
            elif not path.exists():
                yield f"{page}:{number}: the link {target} leads to no file"
            elif anchor and path.suffix == ".md" and anchor not in anchors(path.read_text(encoding="utf-8")):
                yield f"{page}:{number}: {path_part or page.name} has no heading for #{anchor}"


def find_pages(root: Path) -> list[Path]:
    """The pages of the documentation."""
    return [*sorted(root.glob("*.md")), *sorted((root / "docs").rglob("*.md"))]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Runs the code in the documentation and checks its links.")
    parser.add_argument("files", nargs="*", type=Path, help="pages to check; default: all")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent, help="the repository")
    parser.add_argument("--links-only", action="store_true", help="check links, do not run code")
    options = parser.parse_args(arguments)

    pages = options.files or find_pages(options.root)

    def check(page: Path) -> list[str]:
        text = page.read_text(encoding="utf-8")
        return [*check_links(options.root, page, text), *(() if options.links_only else run_page(page, text))]

    # Two pages in parallel: one computes while another waits for Cassandra nodes.
    with ThreadPoolExecutor(max_workers=2) as pool:
        problems = [problem for found in pool.map(check, pages) for problem in found]
    for problem in problems:
        print(problem)
    print(f"docs: {len(problems)} problems" if problems else f"docs: {len(pages)} pages passed")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

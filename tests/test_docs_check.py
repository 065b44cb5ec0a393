"""The documentation check must see code that fails, output that differs and links that lead nowhere."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CHECK = Path(__file__).resolve().parent.parent / "scripts" / "check_docs.py"


def check(root: Path, page: str) -> tuple[int, str]:
    (root / "README.md").write_text(page)
    command = [sys.executable, CHECK, "--root", root]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=root)
    return done.returncode, done.stdout + done.stderr


def fenced(language: str, code: str) -> str:
    return f"```{language}\n{code}\n```\n"


def test_blocks_share_a_session_and_a_folder(tmp_path: Path) -> None:
    page = (
        fenced("python", "x = 20\nopen('made', 'w').write('here')")
        + fenced("console", "$ cat made\nhere")
        + "Some words.\n"
        + fenced("python", "assert x == 20")
        + fenced("bash", "rm made\ntest ! -e made")
    )
    status, output = check(tmp_path, page)
    assert status == 0, output
    assert "4 blocks ran" in output
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("block", "complaint"),
    [
        (fenced("python", "x = 1\nassert x == 2"), 'README.md", line 3'),
        (fenced("python", "x = ("), "SyntaxError"),
        (fenced("python", "import os\nos._exit(3)"), "the Python session ended with status 3"),
        (fenced("console", "$ false"), "README.md:2: status 1 instead of 0"),
        (fenced("console", "$ echo one\ntwo"), "it prints\none"),
        (fenced("console", "$ true\n[exit 4]"), "status 0 instead of 4"),
        (fenced("console", "words\n$ true"), "output before the first command"),
        (fenced("bash", "false\ntrue"), "status 1 instead of 0"),
        ("```python\nx = 1\n", "never closed"),
    ],
)
def test_a_block_that_fails_is_seen(tmp_path: Path, block: str, complaint: str) -> None:
    status, output = check(tmp_path, block)
    assert status == 1
    assert complaint in output


@pytest.mark.parametrize(
    "code",
    [
        "$ printf 'a 1.25 s\\nb\\n'\na ... s\nb",
        "$ seq 100\n1\n...\n100",
        "$ echo one \\\n    two\none two",
        "$ echo anything",
        "$ echo no >&2; exit 3\nno\n[exit 3]",
    ],
)
def test_output_is_compared_loosely(tmp_path: Path, code: str) -> None:
    status, output = check(tmp_path, fenced("console", code))
    assert status == 0, output


def test_a_block_left_out_is_said_with_its_reason(tmp_path: Path) -> None:
    block = fenced("bash", "false")
    status, output = check(tmp_path, f"<!-- not run: needs a cluster -->\n\n{block}")
    assert status == 0, output
    assert "README.md:4: not run: needs a cluster" in output
    assert check(tmp_path, f"<!-- not run: -->\n{block}")[0] == 1
    assert check(tmp_path, f"<!-- not run: needs a cluster -->\nBut this one does.\n{block}")[0] == 1


def test_other_languages_are_not_run(tmp_path: Path) -> None:
    assert check(tmp_path, fenced("text", "anything") + fenced("", "else"))[0] == 0


@pytest.mark.parametrize(
    ("link", "complaint"),
    [
        ("[a](docs/none.md)", "leads to no file"),
        ("![a](docs/none.svg)", "leads to no file"),
        ('<img src="docs/none.svg">', "leads to no file"),
        ("[a](docs/page.md#nowhere)", "has no heading for #nowhere"),
        ("[a](#nowhere)", "has no heading for #nowhere"),
        ("[a](../../etc/passwd)", "leaves the repository"),
    ],
)
def test_a_link_that_leads_nowhere_is_seen(tmp_path: Path, link: str, complaint: str) -> None:
    write_second_page(tmp_path)
    status, output = check(tmp_path, f"# Title\n\nSee {link}.\n")
    assert status == 1
    assert complaint in output


def test_links_that_lead_somewhere_pass(tmp_path: Path) -> None:
    write_second_page(tmp_path)
    links = (
        "[a](docs/page.md) [b](docs/page.md#a-heading-with-code) [c](#title) [d](docs/page.md#a-heading-with-code-1)"
    )
    elsewhere = "[e](https://example.org/none) `[f](none.md)`"
    code = fenced("text", "[g](none.md)")
    status, output = check(tmp_path, f"# Title\n\n{links} {elsewhere}\n{code}")
    assert status == 0, output


def write_second_page(root: Path) -> None:
    (root / "docs").mkdir()
    (root / "docs" / "page.md").write_text("# A heading, with `code`\n\n## A heading with code\n")

"""The documentation check reports code that fails, output that differs and broken links."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from chronotile.cli.main import cli

CHECK = Path(__file__).resolve().parents[2] / "scripts" / "check_docs.py"


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
        (fenced("console", "$ echo one\ntwo"), "actual output\none"),
        (fenced("console", "$ true\n[exit 4]"), "status 0 instead of 4"),
        (fenced("console", "words\n$ true"), "output before the first command"),
        (fenced("bash", "false\ntrue"), "status 1 instead of 0"),
        ("```python\nx = 1\n", "never closed"),
    ],
)
def test_a_block_that_fails_is_reported(tmp_path: Path, block: str, complaint: str) -> None:
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
def test_dots_match_any_output(tmp_path: Path, code: str) -> None:
    status, output = check(tmp_path, fenced("console", code))
    assert status == 0, output


def test_a_skipped_block_is_reported_with_its_reason(tmp_path: Path) -> None:
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
def test_a_broken_link_is_reported(tmp_path: Path, link: str, complaint: str) -> None:
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


# ---------------------------------------------------------------- commands in the text


ROOT = CHECK.parent.parent
_SPAN = re.compile(r"`(chronotile [^`]+)`")
_LINE = re.compile(r"^\s*(?:\$ )?(chronotile (?:.*\\\n)*.*)$", re.MULTILINE)


def wrong_with(words: list[str]) -> str:
    """The first command or option of a documented command line that does not exist; values are not checked."""
    context = click.Context(cli)
    command: click.Command = cli
    options = {"--version", "--help", "-h", "--debug"}
    for word in words:
        if isinstance(command, click.Group):
            options |= {name for parameter in command.params for name in parameter.opts}
            found = command.get_command(context, word)
            if found is not None:
                command = found
                options |= {
                    name for parameter in command.params for name in [*parameter.opts, *parameter.secondary_opts]
                }
                continue
            if not word.startswith("-") and word != "..." and not word.isupper():
                return f"no command {word}"
        if word in ("|", ">", "&&", "&", ";") or word.startswith("$("):
            break
        if word.startswith("-") and word != "-" and not word[1:].isdigit() and word.partition("=")[0] not in options:
            return f"no option {word}"
    return ""


@pytest.mark.parametrize("page", sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]), ids=lambda page: page.name)
def test_commands_named_in_the_text_are_commands(page: Path) -> None:
    text = page.read_text()
    lines = [*_SPAN.findall(text), *(line.replace("\\\n", " ") for line in _LINE.findall(text))]
    wrong = {one: reason for one in lines if (reason := wrong_with(shlex.split(one, comments=True)[1:]))}
    assert not wrong


def commands_of(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    """Every command of a group and its subgroups, with its full name."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from commands_of(command, (*path, name))
        elif command is not None:
            yield " ".join((*path, name)), command


@pytest.mark.parametrize("option", ["--yes", "--confirm"])
def test_the_page_names_every_command_that_asks_for_confirmation(option: str) -> None:
    page = (ROOT / "docs" / "cli.md").read_text()
    section = page.partition("## Commands that delete")[2].partition("\n## ")[0]
    asking = [name for name, command in commands_of(cli) if any(option in each.opts for each in command.params)]
    # A plan takes the option only to show what a run needs.
    asking = [name for name in asking if not name.endswith(" plan")]
    assert len(asking) > 1
    assert [name for name in asking if not re.search(rf"`{name}( --[a-z-]+)?`", section)] == []

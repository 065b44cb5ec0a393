"""Commands of the operator's own: what of them a remote shell gets to read."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chronotile.errors import InvalidInputError
from chronotile_tools import ops
from chronotile_tools.ops.procedures.actuators import Commands
from chronotile_tools.ops.templates import Template

HOST = ops.access.Host("10.0.0.1", "10.0.0.1")
HOSTILE = ["$(touch x)", "a b", "*", "'", '"', ";", "-q", "\\", "", "\n"]


def read_by_shell(words: list[str]) -> list[str]:
    """What a program gets whose words went through ssh: joined, and read by a shell."""
    return shlex.split(" ".join(words))


@given(st.lists(st.text(alphabet=st.characters(exclude_characters="\0", exclude_categories=["Cs"]))))
@pytest.mark.parametrize(
    "template", ["ssh {host}", "sudo -u ops ssh {host}", "/opt/on-node {host}", "timeout 9 ssh {host}"]
)
def test_words_pass_a_remote_shell_as_they_are(template: str, words: list[str]) -> None:
    before = len(Template(template, "--shell", {"host"}).command(host="h"))
    command = Template(template, "--shell", {"host"}).command(words, host="h")
    assert read_by_shell(command[before:]) == words


def test_each_remote_shell_on_the_way_takes_its_quotes_away() -> None:
    command = Template("ssh gate ssh {host} nodetool", "--nodetool", {"host"}).command(HOSTILE, host="10.0.0.1")
    assert command[:5] == ["ssh", "gate", "ssh", "10.0.0.1", "nodetool"]
    assert read_by_shell(read_by_shell(command[5:])) == HOSTILE


@pytest.mark.parametrize(
    "template",
    ["nodetool -h {host}", "/usr/bin/docker exec {host} nodetool", "kubectl exec {host} -- nodetool",
     "x {host} {words}", "ssh {host} {words}"],
)  # fmt: skip
def test_programs_that_start_others_directly_get_the_words_unchanged(template: str) -> None:
    command = Template(template, "--nodetool", {"host"}).command(HOSTILE, host="h")
    assert command[-len(HOSTILE) :] == HOSTILE
    assert "{words}" not in command


def test_values_within_a_template_are_quoted_like_words() -> None:
    template = Template("ssh {host} configure {setting}={value}", "--configure-command", {"host", "setting", "value"})
    command = template.command(host="10.0.0.1", setting="a", value="$(touch x) y")
    assert read_by_shell(command[2:]) == ["configure", "a=$(touch x) y"]
    with pytest.raises(InvalidInputError, match="would be read as an option"):
        template.command(host="-oProxyCommand=x", setting="a", value="b")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ssh {hosts}", "{hosts} means nothing here; use {host}"),
        ("ssh {host} {words} x", "{words} as the last word only"),
        ("ssh {host} 'x", "No closing quotation"),
        ("", "is not a command"),
        ("{words}", "is not a command"),
    ],
)
def test_templates_that_cannot_be_meant_are_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        Template(text, "--shell", {"host"})
    assert message in str(refused.value)


def test_whatever_stands_before_ssh_the_words_arrive_as_they_were(tmp_path: Path) -> None:
    """Through both ways in which commands are run, with a program that does as ssh does."""
    remote = tmp_path / "ssh"
    remote.write_text('#!/bin/sh\nshift\nexec sh -c "$*"\n')
    remote.chmod(0o755)
    show = f"{shlex.quote(sys.executable)} -c 'import sys; print(sys.argv[1:])'"
    words = ["$(touch evil)", "a  b", "*", "'", "; touch evil"]
    for before in ("", "env X=1 "):
        runner = ops.CommandRunner(f"{before}{remote} {{host}} {shlex.quote(show)}", shell="true {host}")
        assert runner.nodetool(HOST, *words).strip() == str(words)
        commands = Commands({"send": f"{before}{remote} {{host}} {shlex.quote(show)}"})
        assert commands._run("send", words, host="10.0.0.1") == str(words)
    assert not Path("evil").exists()

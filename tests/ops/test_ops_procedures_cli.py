"""``chronotile ops`` for procedures as operators type it: what is refused, with which exit code, and what is shown."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from conftest import Run
from support_procedures import Marks, context, run_apart

from chronotile_tools import lab
from chronotile_tools.ops.procedures import plan
from chronotile_tools.ops.procedures.actuators import Commands, Manual
from chronotile_tools.ops.procedures.restarts import RollingRestart

NOWHERE = "127.77.250.250"


def test_without_a_way_to_nodetool_it_says_what_to_give(chronotile: Run) -> None:
    done = chronotile("ops", "restart", "plan", NOWHERE)
    assert done.returncode == 2
    assert "--nodetool 'ssh {host} nodetool' or --lab" in done.stderr


def test_a_wrong_address_is_unavailable_by_name(chronotile: Run) -> None:
    done = chronotile("ops", "restart", "run", NOWHERE, "--nodetool", "false {host}", "--timeout", "1")
    assert done.returncode == 8
    assert NOWHERE in done.stderr


def test_who_may_not_log_in_or_work_is_told_so_and_nothing_is_begun(
    secure_cluster: lab.Cluster, chronotile: Run, tmp_path: Path
) -> None:
    tls, point = secure_cluster.tls, secure_cluster.contact_points[0]
    assert tls is not None
    with secure_cluster.nodes[0].connect() as connection:
        for role, rights in (("novice", "system"), ("reader", "system_views")):
            connection.run(f"CREATE ROLE IF NOT EXISTS {role} WITH PASSWORD = 'secret' AND LOGIN = true")
            connection.run(f"GRANT SELECT ON KEYSPACE {rights} TO {role}")
    nodetool = f"{sys.executable} -m chronotile lab nodetool -c {secure_cluster.name} {{host}} {{words}}"
    files = ["--ca", tls.ca, "--cert", tls.client_certificate, "--key", tls.client_key]
    journals = tmp_path / "journals"

    def run(user: str, password: str) -> str:
        (tmp_path / "password").write_text(password)
        login = ["--user", user, "--password-file", tmp_path / "password"]
        done = chronotile("ops", "restart", "run", point, "--nodetool", nodetool, "--manual", "--journal", journals,
                          *files, *login)  # fmt: skip
        assert done.returncode == 8
        return done.stderr

    assert "refuses user ann" in run("ann", "wrong")
    assert "novice has no SELECT permission" in run("novice", "secret")
    assert "reader has no CREATE permission" in run("reader", "secret")
    assert not journals.exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--stop-command", "ssh {hosts} stop"], "{hosts} means nothing"),
        (["--manual", "--stop-command", "ssh {host} stop"], "Give commands or --manual, not both"),
    ],
)
def test_hands_that_cannot_be_meant_are_refused(chronotile: Run, options: list[str], message: str) -> None:
    done = chronotile("ops", "restart", "plan", NOWHERE, "--nodetool", "false {host}", *options)
    assert done.returncode == 2
    assert message in done.stderr


def test_a_verb_that_nothing_says_how_to_do_is_refused_in_the_plan(shared_cluster: lab.Cluster) -> None:
    address = shared_cluster.nodes[0].address
    work = context(shared_cluster)
    work.actuator = Commands({"stop": "true {host}"})
    made = plan(RollingRestart([address]), work)
    assert made.refused
    assert "no command to start a node: pass --start-command or --manual" in str(made)


def test_commands_run_with_their_fields_and_tell_what_failed() -> None:
    program = f"{sys.executable} -c 'import sys; sys.exit(sys.argv[1])'"
    commands = Commands({"stop": f"{program} {{host}}", "start": "chronotile-no-such-program {host}"}, timeout_s=20)
    with pytest.raises(Exception, match=r"ended with 1: 10\.0\.0\.7"):
        commands.stop("10.0.0.7")
    with pytest.raises(Exception, match="chronotile-no-such-program"):
        commands.start("10.0.0.7")


def test_an_operator_is_told_each_thing_to_do() -> None:
    output: list[str] = []
    manual = Manual(output.append)
    manual.stop("10.0.0.7")
    manual.install("10.0.0.7", "4.1.10")
    manual.replace("10.0.0.7", "10.0.0.8")
    assert [line.split()[1] for line in output] == ["stop", "install", "start"]
    assert "replace_address_first_boot=10.0.0.7" in output[2]


def test_what_is_unfinished_is_shown_resumed_and_given_up(
    shared_cluster: lab.Cluster, chronotile: Run, tmp_path: Path
) -> None:
    journals = tmp_path / "journals"
    where = ["--lab", shared_cluster.name, "--journal", journals]
    nothing = chronotile("ops", "resume", *where)
    assert nothing.returncode == 3
    assert "no unfinished procedure" in nothing.stderr
    assert run_apart(shared_cluster, journals, Marks(str(tmp_path), 2), 3).returncode == -9
    shown = chronotile("ops", "journal", *where)
    assert shown.stdout.startswith("UNFINISHED")
    # The program that ran it knows this procedure; the command line does not, and touches nothing.
    strange = chronotile("ops", "resume", *where)
    assert strange.returncode == 5
    assert "'marks' of another release" in strange.stderr
    given_up = chronotile("ops", "abandon", *where)
    assert given_up.returncode == 0, given_up.stderr
    assert "abandoned" in given_up.stdout
    assert chronotile("ops", "journal", *where).stdout.startswith("ended")

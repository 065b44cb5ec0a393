"""A service among clients that mean it no good, or do not know what they do."""

from __future__ import annotations

import contextlib
import gzip
import os
import resource
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
import support_attack
from support_leaks import unclosed
from support_service import Answer, Service
from support_waiting import wait_until

import chronotile as ct
from chronotile import events, historian, jobs
from chronotile.urls import without_password

MIB = 1 << 20
COMPUTING = """
import re, sys
from chronotile.service import front_ends
from chronotile.cli import main
# An expression whose time is exponential, which the interpreter evaluates without ever giving its lock away.
front_ends.FrontEnds.answer = lambda *_: re.fullmatch("(a+)+b", "a" * 64)
main()
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits and figures are read from /proc")


def _send(service: Service, head: str, *pieces: bytes) -> socket.socket:
    """A request, or the start of one, on a connection that stays open."""
    connection = socket.create_connection(("127.0.0.1", service.port), timeout=20)
    connection.sendall(head.replace("\n", "\r\n").encode() + b"".join(pieces))
    return connection


def _packed(service: Service, size: int) -> Answer:
    """A body of comments that unpacks to `size` bytes."""
    return service.ask("POST", "/write", body=gzip.compress(b"#" * size), headers={"Content-Encoding": "gzip"})


def _figure(service: Service, name: str) -> float:
    text = service.ask("GET", "/metrics").body.decode()
    return next(float(line.split()[1]) for line in text.splitlines() if line.startswith(f"chronotile_{name} "))


def _until(service: Service, name: str, low: float, high: float) -> None:
    """Waits for a figure to lie in a range."""
    what = f"{name} from {low} to {high}"
    wait_until(lambda: low <= _figure(service, name) <= high, what, 30, every_s=0.05)


# ---------------------------------------------------------------------- memory


def test_bodies_over_the_memory_of_the_service_are_put_off_and_small_requests_go_on(tmp_path: Path) -> None:
    with Service(tmp_path / "plant.db", tmp_path / "log", "--memory", "16MiB") as service:
        head = f"POST /write?define=true HTTP/1.1\nHost: localhost\nContent-Length: {12 * MIB}\n\n"
        half = _send(service, head, b"#" * (10 * MIB))
        _until(service, "memory_charged_bytes", 10 * MIB, 16 * MIB)
        late = _packed(service, 6 * MIB)
        assert (late.status, late.error["kind"], late.headers["Retry-After"]) == (503, "memory-in-use", "1")
        assert service.ask("POST", "/write", {"define": "true"}, b"a value=1").status == 204
        assert _figure(service, "memory_refused_total") >= 1
        half.close()
        _until(service, "memory_charged_bytes", 0, 0)
        assert _packed(service, 6 * MIB).status == 204
        never = _packed(service, 15 * MIB)
        assert (never.status, never.error["kind"]) == (413, "too-large")
        assert "--memory" in never.error["message"]


def test_the_budget_is_a_share_of_what_the_process_may_have(tmp_path: Path) -> None:
    with Service(tmp_path / "plant.db", tmp_path / "log") as service:
        machine = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal"))
        assert 0 < _figure(service, "memory_limit_bytes") <= int(machine.split()[1]) * 1024 / 2
        assert _figure(service, "memory_charged_bytes") == 0
    with Service(tmp_path / "plant.db", tmp_path / "log", "--memory", "3MiB") as service:
        assert _figure(service, "memory_limit_bytes") == 3 * MIB


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/health", 400), ("POST", "/write", 401), ("POST", "/none", 404)]
)
def test_bodies_that_are_not_wanted_are_not_taken_in(tmp_path: Path, method: str, path: str, status: int) -> None:
    tokens = _tokens(tmp_path / "tokens", "ann read - read-0123456789abcdef")
    with Service(tmp_path / "plant.db", tmp_path / "log", "--tokens", str(tokens)) as service:
        before = service.memory()
        answer = service.ask(method, path, body=b"a" * (8 * MIB))
        assert (answer.status, answer.headers["Connection"]) == (status, "close"), "the answer reaches who still sends"
        head = f"{method} {path} HTTP/1.1\nHost: a\nContent-Length: {20 * MIB}\n\n"
        with contextlib.ExitStack() as open_connections:
            for _ in range(20):
                connection = open_connections.enter_context(_send(service, head))
                with contextlib.suppress(OSError):
                    for _ in range(10):
                        connection.sendall(b"a" * MIB)
            assert service.memory() - before < 32 * MIB


def test_a_body_that_says_it_is_too_large_is_refused_before_it_comes(tmp_path: Path) -> None:
    with Service(tmp_path / "plant.db", tmp_path / "log", "--max-body", "1MiB") as service:
        head = f"POST /write HTTP/1.1\nHost: localhost\nContent-Length: {2 * MIB}\n\n"
        with _send(service, head) as connection:
            answer = connection.recv(4096)
        assert answer.startswith(b"HTTP/1.1 413")
        assert b"connection: close" in answer


# ---------------------------------------------------------------------- web pages


def test_without_tokens_pages_of_other_sites_are_refused(tmp_path: Path) -> None:
    with Service(tmp_path / "plant.db", tmp_path / "log") as service:
        own = f"http://127.0.0.1:{service.port}"
        foreign = f"http://localhost:{service.port}"
        for method, path, body in (
            ("POST", "/write?define=true", b"a value=1"),
            ("GET", "/v1/tags", None),
            ("POST", "/v1/maintain", None),
            ("DELETE", "/v1/points?tag=a&start=now", None),
        ):
            for heads in ({"Origin": foreign}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}):
                answer = service.ask(method, path, body=body, headers=heads)
                assert (answer.status, answer.error["kind"]) == (403, "foreign-origin"), (method, heads)
            for host in ("evil.example", f"evil.example:{service.port}", "192.168.1.1"):
                answer = service.ask(method, path, body=body, headers={"Host": host})
                assert (answer.status, answer.error["kind"]) == (403, "foreign-host"), (method, host)
        assert service.ask("GET", "/v1/tags").json["tags"] == []
        for heads in ({"Origin": own, "Sec-Fetch-Site": "same-origin"}, {"Sec-Fetch-Site": "none"}, {}):
            assert service.ask("POST", "/write?define=true", body=b"a value=1", headers=heads).status == 204
        assert service.ask("GET", "/", headers={"Sec-Fetch-Site": "cross-site"}).status == 200
        assert service.ask("GET", "/v1/tags", headers={"Host": f"localhost:{service.port}"}).status == 200


def test_without_tokens_a_body_has_the_type_that_it_is_read_as(tmp_path: Path) -> None:
    with Service(tmp_path / "plant.db", tmp_path / "log") as service:
        for type_ in ("text/plain", "application/x-www-form-urlencoded", None):
            heads = {} if type_ is None else {"Content-Type": type_}
            answer = service.ask("POST", "/v1/tags", body=b'{"tags":[{"name":"a"}]}', headers=heads)
            assert (answer.status, answer.error["kind"]) == (415, "unsupported-type"), type_
            assert "application/json" in answer.error["message"]
        typed = service.ask("POST", "/v1/tags", body={"tags": [{"name": "a"}]})
        assert typed.status == 200
        charset = {"Content-Type": "Application/JSON; charset=utf-8"}
        assert service.ask("POST", "/v1/tags", body=b'{"tags":[{"name":"a"}]}', headers=charset).status == 200


def test_with_tokens_any_host_may_be_asked_and_pages_need_the_token(tmp_path: Path) -> None:
    tokens = _tokens(tmp_path / "tokens", "ann read - read-0123456789abcdef")
    with Service(tmp_path / "plant.db", tmp_path / "log", "--tokens", str(tokens)) as service:
        heads = {"Host": "plant.example", "Origin": "https://other.example", "Sec-Fetch-Site": "cross-site"}
        assert service.ask("GET", "/v1/tags", headers=heads).error["kind"] == "token-missing"
        heads["Authorization"] = "Bearer read-0123456789abcdef"
        assert service.ask("GET", "/v1/tags", headers=heads).status == 200


# ---------------------------------------------------------------------- connections


def test_idle_connections_make_room_for_those_that_ask(tmp_path: Path) -> None:
    options = ("--max-connections", "16", "--client-time", "60s")
    with (
        Service(tmp_path / "plant.db", tmp_path / "log", *options) as service,
        contextlib.ExitStack() as open_connections,
    ):
        idle = [open_connections.enter_context(_send(service, "")) for _ in range(8)]
        idle += [
            open_connections.enter_context(_send(service, "GET /health HTTP/1.1\nHost: localhost\n\n"))
            for _ in range(16)
        ]
        half = [open_connections.enter_context(_send(service, "GET /health HTTP/1.1\nHo")) for _ in range(16)]
        for _ in range(20):
            assert service.ask("GET", "/health").status == 200
        assert _figure(service, "connections") <= 16
        assert _figure(service, "connections_closed_total") >= 24
        assert len(idle + half) == 40


def _few_files() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))


@pytest.fixture
def many_files() -> Iterator[None]:
    """Lets the tests open more files than the service may."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(before[1], 4096), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.usefixtures("many_files")
def test_the_default_holds_where_few_files_may_be_open(tmp_path: Path) -> None:
    with (
        Service(tmp_path / "plant.db", tmp_path / "log", "--client-time", "60s", limits=_few_files) as service,
        contextlib.ExitStack() as open_connections,
    ):
        # The system takes some more than the service does, until it comes to them.
        for _ in range(1_100):
            open_connections.enter_context(_send(service, ""))
        for _ in range(20):
            assert service.ask("GET", "/health").status == 200
        assert _figure(service, "connections") < 1_024
        assert _figure(service, "connections_closed_total") >= 100
        refused = [line for line in service.log() if "could not be accepted" in str(line)]
        assert not refused
    with pytest.raises(AssertionError, match="ulimit -n"):
        Service(tmp_path / "plant.db", tmp_path / "log", "--max-connections", "2000", limits=_few_files)


def test_busy_connections_are_kept_and_a_new_one_is_told_to_come_back(tmp_path: Path) -> None:
    head = "POST /write?define=true HTTP/1.1\nHost: localhost\nContent-Length: 9\nExpect: 100-continue\n\n"
    with (
        Service(tmp_path / "plant.db", tmp_path / "log", "--max-connections", "4", "--client-time", "60s") as service,
        contextlib.ExitStack() as open_connections,
    ):
        busy = [open_connections.enter_context(_send(service, head)) for _ in range(3)]
        for connection in busy:
            assert connection.recv(1000).startswith(b"HTTP/1.1 100")
        with _send(service, "") as late:
            answer = late.recv(1000)
        assert answer.startswith(b"HTTP/1.1 503")
        assert b"Retry-After" in answer
        for connection in busy:
            connection.sendall(b"a value=1")
            assert connection.recv(1000).startswith(b"HTTP/1.1 204")
        assert service.ask("GET", "/health").status == 200


# ---------------------------------------------------------------------- answers


def test_answers_that_hold_much_are_charged_and_refused_where_there_is_no_room(tmp_path: Path) -> None:
    count = 150_000
    with ct.open(tmp_path / "jobs.db") as archive:
        schema = pa.schema([("job_id", pa.int64()), ("submitted", pa.timestamp("us")), ("run_s", pa.float64())])
        grid = jobs.create(archive, "grid", schema=schema, time="submitted")
        numbers = pa.array(range(count), pa.int64())
        moments = pc.add(pa.scalar(datetime(2026, 1, 1), pa.timestamp("us")), numbers.cast(pa.duration("us")))
        grid.write(pa.table({"job_id": numbers, "submitted": moments, "run_s": numbers.cast(pa.float64())}), "b")
    asked = {"days": "2026-01-01", "by": "job_id"}
    summed = {"days": "2026-01-01", "by": "submitted", "aggregate": "sum(run_s)"}
    with Service(tmp_path / "jobs.db", tmp_path / "log", "--memory", "512MiB") as service:
        for question in (asked, summed):
            answer = service.ask("GET", "/v1/jobs/grid/group", question)
            assert (answer.status, answer.error["kind"]) == (413, "too-large")
            assert "groups" in answer.error["message"]
        assert service.ask("GET", "/v1/jobs/grid", {"days": "2026-01-01", "format": "parquet"}).status == 200
        _until(service, "memory_charged_bytes", 0, 0)
    with Service(tmp_path / "jobs.db", tmp_path / "log", "--memory", "8MiB") as service:
        for path, question in (("/group", asked), ("/group", summed), ("", {"days": "2026-01-01"})):
            answer = service.ask("GET", f"/v1/jobs/grid{path}", question)
            assert (answer.status, answer.error["kind"]) == (413, "too-large")
            assert "--memory" in answer.error["message"]
        assert service.ask("GET", "/v1/jobs/grid", {"id": "7"}).status == 200
        _until(service, "memory_charged_bytes", 0, 0)


# ---------------------------------------------------------------------- all at once


def _given_back(service: Service, bytes_max: int) -> None:
    """Waits until the service has less anonymous memory than this: threads that wait keep little of what they freed."""
    end = time.monotonic() + 8
    while service.memory("RssAnon") >= bytes_max and time.monotonic() < end:
        time.sleep(0.5)
    assert service.memory("RssAnon") < bytes_max


def test_work_that_is_spread_over_threads_gives_way(tmp_path: Path) -> None:
    """No processor that a small request wants is held by the decoding and encoding of a large one."""
    with Service(tmp_path / "plant.db", tmp_path / "log") as service:
        process = Path(f"/proc/{service.process.pid}")
        nice = {}
        for thread in process.glob("task/*"):
            # The fields after the name in parentheses, which may hold blanks; the 17th of them is the priority.
            fields = (thread / "stat").read_text().rpartition(")")[2].split()
            nice[thread.name] = ((thread / "comm").read_text().strip(), int(fields[16]))
        own = nice[process.name][1]
        spread = [value for name, value in nice.values() if name.startswith("chronotile-cpu")]
    assert len(spread) == len(os.sched_getaffinity(0))
    assert set(spread) == {min(own + 3, 19)}


def test_the_service_lives_under_attack_and_serves_a_polite_client(tmp_path: Path) -> None:
    support_attack.fill(tmp_path / "plant.db")
    tokens = _tokens(tmp_path / "tokens", *support_attack.TOKENS.splitlines())

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))

    options = ("--tokens", str(tokens), "--memory", "128MiB", "--log-format", "off", "--stop-time", "10s")
    with Service(tmp_path / "plant.db", tmp_path / "log", *options, limits=limit) as service:
        # Other tests share the machine with the service: one attempt may meet them, three in a row do not.
        for _attempt in range(3):
            quiet = support_attack.polite(service.port, 2)
            with support_attack.Attackers(service.port, unpacked=4 * MIB, nice=10) as attackers:
                loud = support_attack.polite(service.port, 12)
                # On a machine that has other things to do this takes longer.
                attackers.wait_for_half(90)
            assert service.process.poll() is None, service.log_path.read_text()[-2_000:]
            peak = service.memory("VmHWM")
            print(f"resident at most {peak >> 20} MiB; p99 {quiet.p99_ms():.0f} and {loud.p99_ms():.0f} ms")
            assert peak < 512 * MIB
            _given_back(service, 128 * MIB)
            assert set(quiet.statuses) <= {"200", "204"}
            assert set(loud.statuses) <= {"200", "204", "429", "503"}
            assert loud.statuses["200"] >= 8
            assert loud.statuses["204"] >= 2
            if loud.p99_ms() < 5 * max(quiet.p99_ms(), 20):
                break
        else:
            pytest.fail("in no attempt was p99 below five times the quiet one, or 100 ms")
        assert len(attackers.done) == len(support_attack.attacks(1_000)) >= 20
        assert sum(bool(outcomes) for outcomes in attackers.done.values()) >= 10
        began = time.monotonic()
        assert service.stop() == 0
        assert time.monotonic() - began < 15


# ---------------------------------------------------------------------- the end


def test_sigterm_ends_the_service_in_its_time_while_python_computes(tmp_path: Path) -> None:
    with Service(tmp_path / "plant.db", tmp_path / "log", "--stop-time", "2s", program=("-c", COMPUTING)) as service:
        with _send(service, "GET /v1/events/web/count HTTP/1.1\nHost: localhost\n\n"):
            _until(service, "requests_in_flight", 2, 2)
            time.sleep(0.3)
            began = time.monotonic()
            service.process.send_signal(signal.SIGTERM)
            assert service.process.wait(20) == 0
            assert time.monotonic() - began < 3
        assert any("were interrupted" in line.get("message", "") for line in service.log())


# ---------------------------------------------------------------------- clients


@contextlib.contextmanager
def _answering(answers: list[bytes | None]) -> Iterator[str]:
    """A server that reads a request's head, and gives what is said for each connection or dies."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for answer in answers:
                connection, _ = listener.accept()
                with connection:
                    text = b""
                    while b"\r\n\r\n" not in text:
                        text += connection.recv(65536)
                    if answer is not None:
                        connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread.join(20)


WHOLE = b'HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\n{"groups":[]}'


@pytest.mark.parametrize(
    "answers",
    [
        [None],
        [b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"],
        [b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n"],
        [WHOLE + b"", None],
    ],
    ids=["dies", "breaks off", "gateway", "dies after a kept connection ended"],
)
def test_a_write_whose_answer_does_not_come_is_unknown(answers: list[bytes | None]) -> None:
    with _answering(answers) as url, historian.connect(url) as h:
        if len(answers) == 2:
            assert h.groups() == []
        with pytest.raises(ct.OutcomeUnknownError, match="may have"):
            h.write({"tag": ["a"], "time": ["2026-01-01"], "value": [1.0]})
    with _answering([None]) as url, historian.connect(url) as h, pytest.raises(ct.UnavailableError):
        h.groups()


ARROW = b"HTTP/1.1 200 OK\r\nContent-Type: application/vnd.apache.arrow.stream\r\nTransfer-Encoding: chunked\r\n"


@pytest.mark.parametrize("head", [ARROW, ARROW + b"Connection: close\r\n"], ids=["kept", "closed"])
def test_a_truncated_stream_leaves_no_connection_open(head: bytes) -> None:
    table = pa.table({"value": range(100_000)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    half = sink.getvalue().to_pybytes()[: table.nbytes // 2]

    def read() -> None:
        answers: list[bytes | None] = [head + b"\r\n%x\r\n" % table.nbytes + half]
        with _answering(answers) as url, historian.connect(url) as h, pytest.raises(ct.UnavailableError) as caught:
            h.raw("a", "2026-01-01", "2026-01-02").to_arrow()
        assert caught.value.kind == "broken-off"

    assert unclosed(read) == []


def test_a_response_that_does_not_end_leaves_no_connection_open() -> None:
    def read() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            ended = threading.Event()

            def serve() -> None:
                with listener.accept()[0] as connection:
                    connection.recv(65536)
                    connection.sendall(WHOLE.replace(b"13", b"99\r\nConnection: close"))
                    ended.wait(20)

            thread = threading.Thread(target=serve)
            thread.start()
            with historian.connect(url, timeout=0.3) as h, pytest.raises(ct.UnavailableError) as caught:
                h.groups()
            ended.set()
            thread.join()
        assert caught.value.kind == "broken-off"

    assert unclosed(read) == []


def test_the_connection_of_a_thread_is_closed_when_the_thread_ends() -> None:
    def read() -> None:
        with _answering([WHOLE]) as url, historian.connect(url) as h:
            thread = threading.Thread(target=h.groups)
            thread.start()
            thread.join()

    assert unclosed(read) == []


def test_a_service_that_is_not_there_did_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with historian.connect(f"http://127.0.0.1:{port}") as h, pytest.raises(ct.UnavailableError, match="no service"):
        h.write({"tag": ["a"], "time": ["2026-01-01"], "value": [1.0]})


def test_a_service_that_dies_in_the_middle_of_a_write_leaves_it_unknown(tmp_path: Path) -> None:
    with (
        Service(tmp_path / "plant.db", tmp_path / "log", program=("-c", COMPUTING)) as service,
        events.connect(service.url, "web") as web,
    ):
        raised: list[BaseException] = []

        def ingest() -> None:
            try:
                web.ingest_lines(b"{}")
            except ct.ChronotileError as error:
                raised.append(error)

        thread = threading.Thread(target=ingest)
        thread.start()
        _until(service, "requests_in_flight", 2, 2)
        service.process.kill()
        thread.join(20)
    assert [type(error) for error in raised] == [ct.OutcomeUnknownError]


def test_an_early_refusal_reaches_a_client_that_still_sends(tmp_path: Path) -> None:
    rows = 1_000_000
    points = {"tag": ["a"] * rows, "time": list(range(rows)), "value": [1.0] * rows}
    with (
        Service(tmp_path / "plant.db", tmp_path / "log", "--max-body", "1MiB") as service,
        historian.connect(service.url) as h,
        pytest.raises(ct.InvalidInputError, match="more than 1048576 bytes"),
    ):
        h.write(points)


def test_passwords_of_urls_are_not_shown() -> None:
    for url, shown in (
        ("ftp://ann:s3cret@host/x", "ftp://ann:***@host/x"),
        ("ftp://ann:p@s/s:3@host/x", "ftp://ann:***@host/x"),
        ("ann:s3cret@host", "ann:***@host"),
        ("x://host:80/a?b=1&Password=s3cret&c=2", "x://host:80/a?b=1&Password=***&c=2"),
        ("x://h/?a;TOKEN=s3cret;b=2&xsecret=s3cret=4", "x://h/?a;TOKEN=***;b=2&xsecret=***"),
        ("x://h/?a?passwd=s3cret?b", "x://h/?a?passwd=***"),
        ("x://h/?next=/y?token=s3cret&b=2", "x://h/?next=/y?token=***&b=2"),
        ("x://h/password=1?passwords=2", "x://h/password=1?passwords=2"),
        ("http://host:8086", "http://host:8086"),
        ("http://ann@host:8086", "http://ann@host:8086"),
        ("sqlite:survey.db", "sqlite:survey.db"),
    ):
        assert without_password(url) == shown
    for url in ("ftp://ann:s3cret@host/x", "http://ann:s3cret@127.0.0.1:1", "ann:s3cret@host"):
        with pytest.raises(ct.InvalidInputError) as refused:
            historian.connect(url)
        assert "s3cret" not in str(refused.value)
    for url in ("cassandra://ann:s3cret@host/x", "casandra://ann:s3cret@host/x", "cassandra://h/x?password=s3cret"):
        with pytest.raises(ct.InvalidInputError) as refused:
            ct.open(url)
        assert "s3cret" not in str(refused.value)


# ---------------------------------------------------------------------- secrets


def _tokens(path: Path, *lines: str, mode: int = 0o600) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines))
    path.chmod(mode)
    return path


def _certificate(folder: Path, name: str) -> tuple[Path, Path]:
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
               "-keyout", f"{name}.key", "-out", f"{name}.pem", "-days", "30", "-subj", f"/CN={name}",
               "-addext", "subjectAltName=IP:127.0.0.1"]  # fmt: skip
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder / f"{name}.pem", folder / f"{name}.key"


def test_secrets_that_everybody_can_read_are_named_in_the_log(tmp_path: Path) -> None:
    certificate, key = _certificate(tmp_path, "first")
    key.chmod(0o644)
    tokens = _tokens(tmp_path / "tokens", "ann read - read-0123456789abcdef", mode=0o644)
    files = ("--tokens", str(tokens), "--tls-cert", str(certificate), "--tls-key", str(key))
    with Service(tmp_path / "plant.db", tmp_path / "log", *files) as service:
        warnings = [line["message"] for line in service.log() if line["level"] == "WARN"]
    for path in (tokens, key):
        assert any(f"{path} can be read by every user" in warning for warning in warnings), warnings
    tokens.chmod(0o600)
    key.chmod(0o640)
    with Service(tmp_path / "plant.db", tmp_path / "log", *files) as service:
        assert [line for line in service.log() if line["level"] == "WARN"] == []


def test_certificates_are_read_again_at_sighup(tmp_path: Path) -> None:
    certificate, key = _certificate(tmp_path, "served")
    tokens = _tokens(tmp_path / "tokens", "ann read - read-0123456789abcdef")
    files = ("--tokens", str(tokens), "--tls-cert", str(certificate), "--tls-key", str(key))
    with Service(tmp_path / "plant.db", tmp_path / "log", *files) as service:

        def served() -> str:
            return ssl.get_server_certificate(("127.0.0.1", service.port))

        def reloaded(part: str) -> None:
            service.process.send_signal(signal.SIGHUP)
            for _ in range(200):
                if any(part in line.get("message", "") for line in service.log()):
                    return
                time.sleep(0.05)
            raise AssertionError(f"no line of the log has {part!r}")

        first = served()
        assert first == certificate.read_text()
        os.replace(certificate, tmp_path / "old.pem")
        certificate.write_text("no certificate")
        reloaded("keeping the previous certificate")
        assert served() == first
        for path, new in zip((certificate, key), _certificate(tmp_path, "new"), strict=True):
            os.replace(new, path)
        reloaded("reloaded the certificate")
        assert served() == certificate.read_text() != first


def test_others_are_served_while_tokens_are_read_again_from_a_file_that_does_not_answer(tmp_path: Path) -> None:
    tokens = _tokens(tmp_path / "tokens", "ann read - read-0123456789abcdef")
    with Service(tmp_path / "plant.db", tmp_path / "log", "--tokens", str(tokens)) as service:

        def status(token: str) -> int:
            return service.ask("GET", "/v1/tags", headers={"Authorization": f"Bearer {token}"}).status

        tokens.unlink()
        os.mkfifo(tokens, 0o600)
        service.process.send_signal(signal.SIGHUP)
        # The pipe can be opened for writing once the service reads from it.
        with tokens.open("w") as pipe:
            for _ in range(3):
                assert status("read-0123456789abcdef") == 200
            pipe.write("bob read - next-0123456789abcdef\n")
        wait_until(lambda: status("next-0123456789abcdef") == 200, "the new token")
        assert status("read-0123456789abcdef") == 401
        assert service.stop() == 0


def test_unknown_tags_are_defined_with_the_role_for_it(tmp_path: Path) -> None:
    tokens = _tokens(
        tmp_path / "tokens",
        "gate write - write-0123456789abcdef",
        "scraper write,define - define-0123456789abcdef",
        "root admin - admin-0123456789abcdef",
    )
    with Service(tmp_path / "plant.db", tmp_path / "log", "--tokens", str(tokens)) as service:

        def write(who: str, tag: str, define: str) -> Answer:
            heads = {"Authorization": f"Bearer {who}-0123456789abcdef"}
            return service.ask("POST", "/write", {"define": define}, f"{tag} value=1", headers=heads)

        refused = write("write", "a", "true")
        assert (refused.status, refused.error["kind"]) == (403, "role-missing")
        assert write("write", "a", "false").error["kind"] == "tag-not-found"
        assert write("define", "a", "true").status == 204
        assert write("admin", "b", "true").status == 204
        assert write("write", "a", "false").status == 204
        points = {"points": [{"tag": "c", "time": "2026-01-01", "value": 1}]}
        heads = {"Authorization": "Bearer write-0123456789abcdef"}
        assert service.ask("POST", "/v1/points", {"define": "true"}, points, heads).error["kind"] == "role-missing"

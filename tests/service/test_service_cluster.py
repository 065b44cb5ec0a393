"""Services in front of a real cluster: nodes die and come back, addresses change, and no request fails."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support_lab import keyspace_of
from support_service import Service

import chronotile as ct
from chronotile import events
from chronotile_tools import lab

S = 10**9
START = 1_767_225_600 * S


@pytest.fixture
def services(request: pytest.FixtureRequest, cluster: lab.Cluster, tmp_path: Path) -> Iterator[list[Service]]:
    """Two services of one archive on three nodes."""
    url = cluster.url(keyspace_of(request))
    with Service(url, tmp_path / "log1") as one, Service(url, tmp_path / "log2") as two:
        yield [one, two]


class Clients:
    """Writers and readers, one of each for a service, that note what was answered."""

    def __init__(self, services: list[Service]) -> None:
        self.failed: list[str] = []
        self.acknowledged: list[int] = []
        self._stop = threading.Event()
        self._services = services
        self._threads = [
            threading.Thread(target=work, args=(place, service))
            for place, service in enumerate(services)
            for work in (self._write, self._read)
        ]
        for thread in self._threads:
            thread.start()

    def _write(self, place: int, service: Service) -> None:
        for number in range(place, 1_000_000, len(self._services)):
            if self._stop.is_set():
                return
            answer = service.ask("POST", "/write", body=f"a value={number} {START + number * S}")
            if answer.status == 204:
                self.acknowledged.append(number)
            else:
                self.failed.append(answer.body.decode())

    def _read(self, place: int, service: Service) -> None:
        while not self._stop.is_set():
            known = len(self.acknowledged)
            answer = service.ask("GET", "/v1/points", {"tag": "a", "start": "2026-01-01", "end": "2027-01-01"})
            if answer.status != 200:
                self.failed.append(answer.body.decode())
            elif len(answer.json["rows"]) < known:
                self.failed.append(f"{known} points were acknowledged, {len(answer.json['rows'])} found")
            time.sleep(0.1)

    def more(self, count: int, seconds: float = 120) -> None:
        """Wait until so many more writes were acknowledged."""
        wanted, end = len(self.acknowledged) + count, time.monotonic() + seconds
        while len(self.acknowledged) < wanted and not self.failed:
            assert time.monotonic() < end, "writes stand still"
            time.sleep(0.05)

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


def under_load(services: list[Service], disturb: Callable[[Clients], None]) -> None:
    """Disturbs a cluster while services are used: nothing fails, and all that was acknowledged is there."""
    services[0].ask("POST", "/v1/tags", body={"tags": [{"name": "a"}]})
    clients = Clients(services)
    try:
        clients.more(50)
        disturb(clients)
        clients.more(50)
    finally:
        clients.stop()
    assert clients.failed == []
    for service in services:
        answer = service.ask("GET", "/v1/points", {"tag": "a", "start": "2026-01-01", "end": "2027-01-01"})
        found = {int(row["value"]) for row in answer.json["rows"]}
        assert set(clients.acknowledged) <= found


def test_lines_that_are_sent_to_two_services_are_stored_once(
    request: pytest.FixtureRequest, cluster: lab.Cluster, services: list[Service]
) -> None:
    with ct.open(cluster.url(keyspace_of(request))) as archive:
        events.create(archive, "web", fields={"status": "int64"}, stream_field="host")

    def send(number: int) -> int:
        line = json.dumps({"time": "2026-01-01T00:00:00Z", "host": f"web{number % 5}", "status": 200}) + "\n"
        for _ in range(20):
            batch, body = {"batch": f"b{number % 5}"}, line * 100 + "nothing\n"
            answer = services[number // 5].ask("POST", "/v1/events/web", batch, body)
            # Who lost a race is told so, and sends again.
            if answer.status == 200:
                return int(answer.json["documents"])
            assert answer.status in (409, 503), answer.error
            assert answer.error["kind"] != "batch-differs", answer.error
            time.sleep(0.2)
        return answer.status

    with ThreadPoolExecutor(10) as pool:
        assert set(pool.map(send, range(10))) == {100}
    for service in services:
        assert service.ask("GET", "/v1/events/web/count", {"where": "status=200"}).json == {"count": 500}
        assert len(service.ask("GET", "/v1/events/web", {"stream": "web3", "limit": "1000"}).json["rows"]) == 100
        assert len(service.ask("GET", "/v1/events/web/dead").json["rows"]) == 5


@pytest.mark.slow
def test_no_request_fails_while_a_node_is_killed_and_comes_back(cluster: lab.Cluster, services: list[Service]) -> None:
    def disturb(clients: Clients) -> None:
        cluster.nodes[1].kill()
        clients.more(100)
        cluster.nodes[1].start()
        cluster.wait_until_ready()

    under_load(services, disturb)


@pytest.mark.slow
def test_services_follow_nodes_whose_addresses_all_change(cluster: lab.Cluster, services: list[Service]) -> None:
    before = {node.address for node in cluster.nodes}

    def disturb(clients: Clients) -> None:
        cluster.restart(new_addresses=True)
        clients.more(100)

    under_load(services, disturb)
    assert not before & {node.address for node in cluster.nodes}


def test_figures_of_the_nodes_go_into_the_archive_that_is_served(cluster: lab.Cluster, tmp_path: Path) -> None:
    options = ("--diagnostics", "1s", "--definitions-time", "1s", "--nodes-lab", cluster.name)
    with Service(tmp_path / "plant.db", tmp_path / "log", *options) as service:
        end = time.monotonic() + 120
        latest: list[dict[str, str]] = []
        while len(latest) < len(cluster.nodes):
            assert time.monotonic() < end, service.log_path.read_text()
            time.sleep(0.5)
            # The tags are defined before their first points are stored.
            answer = service.ask("GET", "/v1/latest", {"match": "ops/*/up"})
            latest = answer.json["rows"] if answer.status == 200 else []
        assert {row["tag"].split("/")[2]: float(row["value"]) for row in latest} == dict.fromkeys(
            cluster.contact_points, 1.0
        )
        tags = service.ask("GET", "/v1/tags", {"match": "*", "limit": "2000"}).json["tags"]
        assert len(tags) >= 250
        assert service.stop() == 0

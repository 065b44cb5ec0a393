"""A cluster whose nodes have a Jolokia agent: JMX is read over HTTP, without starting a JVM for each read."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support_lab import QUICK, require_software, serve_again

from chronotile_tools import lab, ops
from chronotile_tools.lab import places

AGENT = "org.jolokia:jolokia-agent-jvm:2.6.0:jar:javaagent"
AGENT_PORT = 8778


def agent() -> Path:
    """The agent's jar, downloaded once. Skips the test, with a clear message, if it is not available."""
    folder = places.cache() / "jolokia"
    jar = folder / "jolokia-agent-jvm-2.6.0-javaagent.jar"
    if not jar.exists():
        maven = shutil.which("mvn")
        if maven is None:
            pytest.skip("JOLOKIA IS ABSENT: Maven is needed to fetch it")
        command = [maven, "-q", "-B", "dependency:copy", f"-Dartifact={AGENT}", f"-DoutputDirectory={folder}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if not jar.exists():
            pytest.skip(f"JOLOKIA IS ABSENT: {done.stdout[-300:]}")
    return jar


# One cluster per module that imports this fixture: with session scope, each import would start its own cluster, and all
# would run at the same time.
@pytest.fixture(scope="module")
def _watched(lab_home: Path) -> Iterator[lab.Cluster]:
    require_software()
    option = f"-javaagent:{agent()}=port={AGENT_PORT},host=0.0.0.0,discoveryEnabled=false"
    options = {**QUICK, "java_options": [*QUICK["java_options"], option]}
    try:
        with lab.up("watched", nodes=3, network="namespaces", **options) as cluster:
            yield cluster
    except lab.LabError as error:
        if error.kind != "lab-network":
            raise
        pytest.skip(f"NODES CANNOT HAVE A NETWORK OF THEIR OWN: {error}")


@pytest.fixture
def watched(_watched: lab.Cluster) -> Iterator[lab.Cluster]:
    """Three nodes with agents, for tests that disturb them; restores them afterwards."""
    yield _watched
    serve_again(_watched)


def access(cluster: lab.Cluster) -> ops.Access:
    """Access to the nodes: CQL, and JMX through the agents."""

    class Here(ops.JolokiaRunner):
        """Runs shell commands locally, because the nodes run on this machine."""

        def shell(self, host: object, *command: str, timeout_s: float = 30) -> str:
            return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=True).stdout

    runner = Here(f"http://{{host}}:{AGENT_PORT}/jolokia")
    return ops.Access(cluster.contact_points, runner=runner, timeout_s=2)

"""Configuration files and Java command line of a node."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chronotile.errors import InvalidInputError
from chronotile_tools.lab import layout, network
from chronotile_tools.lab.software import Server

STORAGE_PORT = 7000
NATIVE_PORT = 9042
RING_DELAY_MS = 2000
JOIN_RING_DELAY_MS = 5000
"""Ring delay of a joining node, in ms: it gives up if no node answers within twice this time."""
BROADCAST_INTERVAL_MS = 10_000
NODE_ARGUMENT = "-Dchronotile.lab.node="
"""Followed by the node's folder, this argument identifies the process of a node."""

_OPENED = {
    "java.base": "java.io java.lang java.lang.module java.lang.reflect java.math java.net java.nio java.nio.charset "
    "java.nio.file.spi java.util java.util.concurrent java.util.concurrent.atomic jdk.internal.loader "
    "jdk.internal.math jdk.internal.misc jdk.internal.module jdk.internal.ref jdk.internal.reflect "
    "jdk.internal.util.jar sun.nio.ch",
    "java.management": "com.sun.jmx.mbeanserver",
    "java.management.rmi": "com.sun.jmx.remote.internal.rmi",
    "java.naming": "com.sun.naming.internal",
    "java.rmi": "sun.rmi.registry sun.rmi.server sun.rmi.transport sun.rmi.transport.tcp",
    "java.sql": "java.sql",
    "jdk.compiler": "com.sun.tools.javac.file",
    "jdk.management": "com.sun.management com.sun.management.internal",
    "jdk.naming.dns": "com.sun.jndi.dns",
}


@dataclass(frozen=True)
class NodePlan:
    """Input for a node's files and command line."""

    cluster: str
    folder: Path
    address: str
    seeds: Sequence[str]
    place: layout.NodeLocation
    jmx_port: int
    heap_mb: int
    tokens: Sequence[int] | None
    """Tokens of a node in a new cluster; None for a node that joins, or already has tokens."""
    joins: bool
    """Whether it joins a cluster that has data."""
    replaces: str | None
    """Address of the dead node that it replaces."""
    authentication: bool
    encryption: Mapping[str, Any] | None
    """``client_encryption_options`` of cassandra.yaml."""
    paxos_v2: bool
    """Whether all nodes support Paxos v2."""
    settings: Mapping[str, Any]
    """The user's settings of cassandra.yaml; a dot in a name separates nested levels."""
    java_options: Sequence[str]


def write_files(plan: NodePlan, server: Server) -> None:
    """Write the node's configuration folder and create its other folders."""
    conf = plan.folder / "conf"
    for name in ("conf", "logs", "tmp", "data"):
        (plan.folder / name).mkdir(parents=True, exist_ok=True)
    settings = cassandra_yaml(plan, server)
    lines = [f"{name}: {json.dumps(value)}" for name, value in settings.items()]
    (conf / "cassandra.yaml").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (conf / "cassandra-rackdc.properties").write_text(f"dc={plan.place.dc}\nrack={plan.place.rack}\n", encoding="utf-8")
    (conf / "logback.xml").write_text(_LOGBACK, encoding="utf-8")
    (conf / "logback-tools.xml").write_text(_LOGBACK_TOOLS, encoding="utf-8")


def cassandra_yaml(plan: NodePlan, server: Server) -> dict[str, Any]:
    """Settings of cassandra.yaml, small enough for several nodes on one machine. All releases accept these names."""
    series = server.release.series
    data = plan.folder / "data"
    settings: dict[str, Any] = {
        "cluster_name": plan.cluster,
        "num_tokens": layout.TOKENS_A_NODE,
        "partitioner": "org.apache.cassandra.dht.Murmur3Partitioner",
        "endpoint_snitch": "GossipingPropertyFileSnitch",
        "seed_provider": [
            {
                "class_name": "org.apache.cassandra.locator.SimpleSeedProvider",
                "parameters": [{"seeds": ",".join(plan.seeds)}],
            }
        ],
        "listen_address": plan.address,
        "rpc_address": plan.address,
        "storage_port": STORAGE_PORT,
        "native_transport_port": NATIVE_PORT,
        "start_native_transport": True,
        "native_transport_max_threads": 32,
        "data_file_directories": [str(data / "data")],
        "commitlog_directory": str(data / "commitlog"),
        "saved_caches_directory": str(data / "saved_caches"),
        "hints_directory": str(data / "hints"),
        "cdc_raw_directory": str(data / "cdc_raw"),
        "commitlog_sync": "periodic",
        "commitlog_sync_period_in_ms": 10_000,
        "commitlog_segment_size_in_mb": 32,
        "commitlog_total_space_in_mb": 256,
        "disk_failure_policy": "stop",
        "commit_failure_policy": "stop",
        "hinted_handoff_enabled": True,
        "auto_snapshot": False,
        "concurrent_compactors": 1,
        "key_cache_size_in_mb": 8,
        "counter_cache_size_in_mb": 2,
        "file_cache_size_in_mb": 64,
        "enable_materialized_views": False,
        "authenticator": "PasswordAuthenticator" if plan.authentication else "AllowAllAuthenticator",
        "authorizer": "CassandraAuthorizer" if plan.authentication else "AllowAllAuthorizer",
        "role_manager": "CassandraRoleManager",
    }
    if plan.tokens is not None:
        settings["initial_token"] = ",".join(map(str, plan.tokens))
        settings["auto_bootstrap"] = False
    elif series >= (4, 0):
        settings["allocate_tokens_for_local_replication_factor"] = 3
    if plan.paxos_v2:
        settings["paxos_variant"] = "v2"
    if plan.encryption is not None:
        settings["client_encryption_options"] = dict(plan.encryption)
    settings.update(server.release.settings)
    for name, value in plan.settings.items():
        _set(settings, name, value)
    return settings


def _set(settings: dict[str, Any], name: str, value: Any) -> None:
    *outer, last = name.split(".")
    for part in outer:
        inner = settings.setdefault(part, {})
        if not isinstance(inner, dict):
            raise InvalidInputError(f"setting {name!r}: {part!r} has no nested settings", kind="invalid-setting")
        settings = inner
    settings[last] = value


def read_settings(pairs: Sequence[str]) -> dict[str, Any]:
    """Parse settings from ``name=value``: the value is JSON if possible, else text.

    Raises
    ------
    InvalidInputError
        For a text without a name or an equals sign.
    """
    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name.strip():
            raise InvalidInputError(f"invalid setting {pair!r}: write name=value", kind="invalid-setting")
        try:
            found[name.strip()] = json.loads(text)
        except ValueError:
            found[name.strip()] = text
    return found


def java_command(plan: NodePlan, server: Server, java: Path, java_major: int) -> list[str]:
    """The command line of the node."""
    folder = plan.folder
    options = [
        f"-Xms{plan.heap_mb}m",
        f"-Xmx{plan.heap_mb}m",
        "-Xss512k",
        "-XX:+UseG1GC",
        "-XX:MaxGCPauseMillis=300",
        "-XX:+ParallelRefProcEnabled",
        "-XX:+ExitOnOutOfMemoryError",
        "-XX:+PerfDisableSharedMem",
        "-XX:MaxMetaspaceSize=192m",
        "-XX:ReservedCodeCacheSize=128m",
        f"-XX:ErrorFile={folder}/logs/hs_err_%p.log",
        f"-javaagent:{server.agent}",
        "-ea",
        "-Djava.net.preferIPv4Stack=true",
        f"-Djava.io.tmpdir={folder}/tmp",
        f"-Djna.tmpdir={folder}/tmp",
        f"-Dcassandra.config=file://{folder}/conf/cassandra.yaml",
        f"-Dcassandra.logdir={folder}/logs",
        f"-Dcassandra.storagedir={folder}/data",
        f"{network.JMX_ARGUMENT}{plan.jmx_port}",
        "-Dcassandra-foreground=yes",
        f"-Dcassandra.ring_delay_ms={JOIN_RING_DELAY_MS if plan.joins else RING_DELAY_MS}",
        "-Dcassandra.skip_wait_for_gossip_to_settle=0",
        "-Dcassandra.superuser_setup_delay_ms=500",
        # A node measures the memory of a row when it starts, by default with 100,000 rows: a third of its work.
        "-Dcassandra.memtable_row_overhead_computation_step=1000",
        # A replacing node waits this long for gossip from the one it replaces.
        f"-Dcassandra.broadcast_interval_ms={BROADCAST_INTERVAL_MS}",
        f"-Dlogback.configurationFile={folder}/conf/logback.xml",
        f"-Dcassandra-rackdc.properties=file://{folder}/conf/cassandra-rackdc.properties",
        f"{NODE_ARGUMENT}{folder}",
        f"{network.PREFIX_ARGUMENT}{plan.address.rpartition('.')[0]}",
    ]
    if java_major >= 11:
        options += module_options(java_major)
    if plan.replaces is not None:
        options.append(f"-Dcassandra.replace_address_first_boot={plan.replaces}")
    options += plan.java_options
    return [str(java), *options, "-cp", f"{server.jars}/*", "org.apache.cassandra.service.CassandraDaemon"]


def module_options(java_major: int) -> list[str]:
    opened = [f"{module}/{package}" for module, names in _OPENED.items() for package in names.split()]
    options = [
        "-Djdk.attach.allowAttachSelf=true",
        "-Dio.netty.tryReflectionSetAccessible=true",
        *(word for name in opened for word in ("--add-opens", f"{name}=ALL-UNNAMED")),
        *(word for name in opened for word in ("--add-exports", f"{name}=ALL-UNNAMED")),
    ]
    if java_major >= 17:
        options.append("-Djava.security.manager=allow")
    return options


_LOGBACK = """<configuration>
  <appender name="FILE" class="ch.qos.logback.core.rolling.RollingFileAppender">
    <file>${cassandra.logdir}/system.log</file>
    <rollingPolicy class="ch.qos.logback.core.rolling.FixedWindowRollingPolicy">
      <fileNamePattern>${cassandra.logdir}/system.log.%i</fileNamePattern>
      <minIndex>1</minIndex>
      <maxIndex>3</maxIndex>
    </rollingPolicy>
    <triggeringPolicy class="ch.qos.logback.core.rolling.SizeBasedTriggeringPolicy">
      <maxFileSize>20MB</maxFileSize>
    </triggeringPolicy>
    <encoder><pattern>%-5level [%thread] %date{ISO8601} %F:%L - %msg%n</pattern></encoder>
  </appender>
  <root level="INFO"><appender-ref ref="FILE"/></root>
</configuration>
"""

_LOGBACK_TOOLS = '<configuration><root level="OFF"/></configuration>\n'

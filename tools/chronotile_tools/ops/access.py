"""An operator's access to a cluster: CQL to each node, and a runner for its management interface (JMX).

CQL goes directly to each node, because virtual tables are local to a node. JMX is reached through one of three runners:
the laboratory's nodetool, a command such as ``ssh {host} nodetool``, or a Jolokia agent in the node's process.
"""

from __future__ import annotations

import base64
import ipaddress
import json
import os
import shlex
import ssl
import subprocess
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from chronotile.errors import AccessDeniedError, ChronotileError, InvalidInputError, UnavailableError
from chronotile_tools import lab
from chronotile_tools.client import wire
from chronotile_tools.errors import CqlError, NotCqlError
from chronotile_tools.ops.templates import Template

__all__ = [
    "NATIVE_PORT",
    "Access",
    "Bean",
    "CommandRunner",
    "Host",
    "JolokiaRunner",
    "LabRunner",
    "Runner",
    "for_lab",
    "read_credentials",
]

NATIVE_PORT = 9042
USER_VARIABLE, PASSWORD_VARIABLE = "CHRONOTILE_CASSANDRA_USER", "CHRONOTILE_CASSANDRA_PASSWORD"
JMX_SECONDS = 30.0
CQL_SECONDS = 5.0

Bean = Mapping[str, Any]
"""Attributes of a managed bean by name."""

# Each query starts a JVM, so use as few as possible. The patterns select the required beans (StorageService, Storage,
# GarbageCollector, DroppedMessage, OperatingSystem; ClientRequest, Compaction, CommitLog) and exclude both the
# thousands of beans of tables and GCInspector, whose attribute ``AndResetStats`` resets its statistics when read.
_QUERIES = ("*:type=*a*g*,*", "*:type=C*t*,*")

# For an agent: attributes by pattern (None for all).
_READS: tuple[tuple[str, tuple[str, ...] | None], ...] = (
    (
        "org.apache.cassandra.db:type=StorageService",
        ("OperationMode", "NativeTransportRunning", "LiveNodes", "UnreachableNodes", "JoiningNodes", "LeavingNodes")
        + ("MovingNodes", "EndpointToHostId", "SchemaVersion", "ReleaseVersion", "CurrentGenerationNumber")
        + ("AllDataFileLocations", "Tokens"),
    ),
    ("java.lang:type=GarbageCollector,name=*", ("CollectionCount", "CollectionTime", "LastGcInfo")),
    ("java.lang:type=OperatingSystem", ("ProcessCpuLoad", "SystemLoadAverage", "AvailableProcessors")),
    ("org.apache.cassandra.metrics:type=Storage,name=*", None),
    ("org.apache.cassandra.metrics:type=Compaction,name=*", ("Value", "Count")),
    ("org.apache.cassandra.metrics:type=CommitLog,name=PendingTasks", ("Value",)),
    ("org.apache.cassandra.metrics:type=Client,name=*", ("Value", "Count")),
    ("org.apache.cassandra.metrics:type=DroppedMessage,scope=*,name=Dropped", ("Count",)),
    ("org.apache.cassandra.metrics:type=ClientRequest,scope=*,name=*", None),
)


@dataclass(frozen=True)
class Host:
    """Addresses of a node: for other nodes and for clients, which may differ."""

    address: str
    native_address: str

    def __str__(self) -> str:
        return self.address


class Runner(Protocol):
    """Access to the management interface of each node."""

    @property
    def name(self) -> str:
        """Name for messages."""

    def hosts(self) -> list[str]:
        """Addresses of nodes known without querying the cluster; may be empty."""

    def nodetool(self, host: Host, *arguments: str, timeout_s: float = JMX_SECONDS) -> str:
        """Run nodetool for a node and return its output.

        Raises
        ------
        UnavailableError
            nodetool cannot be run, or fails; the message has the reason.
        """

    def beans(self, host: Host, *, timeout_s: float = JMX_SECONDS) -> dict[str, Bean]:
        """The managed beans of a node that describe its state, by name with keys sorted.

        Raises
        ------
        UnavailableError
            The beans cannot be read; the message has the reason.
        """

    def shell(self, host: Host, *command: str, timeout_s: float = JMX_SECONDS) -> str:
        """Run a command on a node's machine and return its output.

        Raises
        ------
        UnavailableError
            The machine is not accessible, or the command fails.
        """


class _NodetoolRunner(ABC):
    """Beans through nodetool: its ``sjk mxdump`` writes them as JSON."""

    name = "nodetool"

    @abstractmethod
    def nodetool(self, host: Host, *arguments: str, timeout_s: float = JMX_SECONDS) -> str:
        """Output of nodetool for a node."""

    def beans(self, host: Host, *, timeout_s: float = JMX_SECONDS) -> dict[str, Bean]:
        found: dict[str, Bean] = {}
        for query in _QUERIES:
            text = self.nodetool(host, "sjk", "mxdump", "-q", query, timeout_s=timeout_s)
            found |= read_beans(text, host)
        return found


class LabRunner(_NodetoolRunner):
    """The nodetool of a laboratory's cluster."""

    name = "the laboratory's nodetool"

    def __init__(self, cluster: lab.Cluster) -> None:
        self.cluster = cluster

    def hosts(self) -> list[str]:
        return self.cluster.contact_points

    def nodetool(self, host: Host, *arguments: str, timeout_s: float = JMX_SECONDS) -> str:
        try:
            return self.cluster.node(host.address).nodetool(*arguments, timeout_s=timeout_s)
        except lab.LabError as error:
            raise UnavailableError(str(error), kind="no-connection") from None

    def shell(self, host: Host, *command: str, timeout_s: float = JMX_SECONDS) -> str:
        # All laboratory nodes run on this machine.
        return _run(command, f"{command[0]} for {host}", timeout_s)


class CommandRunner(_NodetoolRunner):
    """A command line that runs nodetool for a node.

    Parameters
    ----------
    nodetool : str
        Command template with ``{host}`` for the node's address, such as ``ssh {host} nodetool``. Arguments are
        appended, quoted for a remote shell unless the template ends with ``{words}``: see
        :mod:`chronotile_tools.ops.templates`.
    shell : str, optional
        Command template that runs any command on the node's machine, such as ``ssh {host}``. Without it, disks cannot
        be checked.

    Raises
    ------
    InvalidInputError
        A template lacks ``{host}``, or has an unclosed quote.
    """

    def __init__(self, nodetool: str, shell: str | None = None) -> None:
        self._nodetool = _template(nodetool, "--nodetool", "ssh {host} nodetool")
        self._shell = None if shell is None else _template(shell, "--shell", "ssh {host}")

    def hosts(self) -> list[str]:
        return []

    def nodetool(self, host: Host, *arguments: str, timeout_s: float = JMX_SECONDS) -> str:
        return self._run(self._nodetool, host, arguments, timeout_s)

    def shell(self, host: Host, *command: str, timeout_s: float = JMX_SECONDS) -> str:
        if self._shell is None:
            raise UnavailableError("no access to the machine: pass --shell 'ssh {host}'", kind="no-connection")
        return self._run(self._shell, host, command, timeout_s)

    def _run(self, template: Template, host: Host, arguments: Sequence[str], timeout_s: float) -> str:
        command = template.command(arguments, host=host.address)
        return _run(command, shlex.join(command), timeout_s)


class JolokiaRunner:
    """A Jolokia agent in each node's process, which answers over HTTP.

    Parameters
    ----------
    url : str
        URL with ``{host}`` for the node's address, such as ``http://{host}:8778/jolokia``.
    credentials : (user, password), optional
        Credentials, if the agent requires them.
    shell : str, optional
        As for :class:`CommandRunner`.
    """

    name = "the Jolokia agent"

    def __init__(self, url: str, credentials: tuple[str, str] | None = None, shell: str | None = None) -> None:
        if "{host}" not in url or not url.startswith(("http://", "https://")):
            raise InvalidInputError(
                f"--jolokia {url!r} is not a URL with {{host}}, such as http://{{host}}:8778/jolokia",
                kind="invalid-url",
            )
        self._url, self._credentials = url, credentials
        self._shell = None if shell is None else CommandRunner(shell, shell)

    def hosts(self) -> list[str]:
        return []

    def nodetool(self, host: Host, *arguments: str, timeout_s: float = JMX_SECONDS) -> str:
        raise UnavailableError("a Jolokia agent cannot run nodetool: also pass --nodetool", kind="no-connection")

    def shell(self, host: Host, *command: str, timeout_s: float = JMX_SECONDS) -> str:
        if self._shell is None:
            raise UnavailableError("no access to the machine: pass --shell 'ssh {host}'", kind="no-connection")
        return self._shell.shell(host, *command, timeout_s=timeout_s)

    def beans(self, host: Host, *, timeout_s: float = JMX_SECONDS) -> dict[str, Bean]:
        asked = [
            {"type": "read", "mbean": name, "config": {"ignoreErrors": "true"}}
            | ({} if attributes is None else {"attribute": list(attributes)})
            for name, attributes in _READS
        ]
        found: dict[str, Bean] = {}
        for (name, _), answer in zip(_READS, self._ask(host, asked, timeout_s), strict=True):
            value = answer.get("value")
            if answer.get("status") != 200 or not isinstance(value, dict):
                continue
            found |= {bean_name(key): bean for key, bean in value.items()} if "*" in name else {bean_name(name): value}
        return found

    def _ask(self, host: Host, requests: list[dict[str, Any]], timeout_s: float) -> list[dict[str, Any]]:
        url = self._url.replace("{host}", _bracketed(host.address))
        request = urllib.request.Request(url, json.dumps(requests).encode(), {"Content-Type": "application/json"})
        if self._credentials is not None:
            token = base64.b64encode(":".join(self._credentials).encode()).decode()
            request.add_header("Authorization", f"Basic {token}")
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as response:
                answer = json.loads(response.read())
        except urllib.error.HTTPError as error:
            error.close()
            denied = " (user or password are wrong)" if error.code in (401, 403) else ""
            raise UnavailableError(
                f"{url} answered {error.code} {error.reason}{denied}", kind="no-connection"
            ) from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise UnavailableError(f"no Jolokia agent answers at {url}: {reason}", kind="no-connection") from None
        if not isinstance(answer, list) or len(answer) != len(requests):
            raise UnavailableError(f"{url} is not a Jolokia agent", kind="no-connection")
        return answer


class Access:
    """Access to a cluster.

    Parameters
    ----------
    contact_points : sequence of str
        ``HOST`` or ``HOST:PORT`` of nodes to query first; the others are discovered.
    credentials : (user, password), optional
        Credentials, if the cluster requires them.
    tls : ssl.SSLContext, optional
        TLS context, if the cluster uses TLS.
    runner : Runner, optional
        Access to JMX. Without it, only CQL is used.
    timeout_s : float
        Timeout of a node's answer over CQL, in seconds.

    Raises
    ------
    InvalidInputError
        A contact point is missing or invalid.
    """

    def __init__(
        self,
        contact_points: Sequence[str],
        *,
        credentials: tuple[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
        runner: Runner | None = None,
        timeout_s: float = CQL_SECONDS,
    ) -> None:
        if not contact_points:
            raise InvalidInputError("no contact points: give the address of a node", kind="invalid-request")
        hosts_and_ports = [_host_and_port(point) for point in contact_points]
        ports = {port for _, port in hosts_and_ports}
        if len(ports) > 1:
            raise InvalidInputError(
                f"contact points with different ports ({', '.join(map(str, sorted(ports)))}): all nodes share one port",
                kind="invalid-request",
            )
        self.contact_points = [host for host, _ in hosts_and_ports]
        self.port = hosts_and_ports[0][1]
        self.runner = runner
        self.timeout_s = timeout_s
        self._credentials, self._tls = credentials, tls

    def __repr__(self) -> str:
        return f"<access to {', '.join(self.contact_points)}>"

    def connect(self, host: Host | str, *, timeout_s: float | None = None) -> wire.Connection:
        """Connect to one node. Close the connection, or use it as a context manager.

        Raises
        ------
        UnavailableError
            The node does not answer; the message has the reason.
        AccessDeniedError
            The node rejects user, password or certificate.
        """
        address = host.native_address if isinstance(host, Host) else host
        seconds = self.timeout_s if timeout_s is None else timeout_s
        try:
            connection = wire.Connection(
                address, self.port, tls=self._tls, credentials=self._credentials, timeout_s=seconds
            )
        except (OSError, ValueError, CqlError) as error:
            raise self.explained(error, address) from None
        try:
            # A node that requires a password rejects only the first statement.
            connection.select("key", "system.local")
        except (OSError, ValueError, CqlError) as error:
            connection.close()
            raise self.explained(error, address) from None
        return connection

    def explained(self, error: Exception, address: str) -> ChronotileError:
        """Convert an error of the CQL client to a message for operators."""
        where = f"{address}:{self.port}"
        if isinstance(error, ssl.SSLCertVerificationError):
            return AccessDeniedError(f"{where} presents a certificate that is not signed by --ca", kind="certificate")
        if isinstance(error, NotCqlError):
            return UnavailableError(
                f"{where} does not speak CQL: {error}; nodes accept clients at native_transport_port, "
                f"{NATIVE_PORT} by default",
                kind="not-cql",
            )
        if isinstance(error, ssl.SSLError):
            return UnavailableError(f"{where} TLS handshake failed: {error.reason or error}", kind="tls-failed")
        if isinstance(error, wire.SilentError):
            return UnavailableError(
                f"{where} accepts connections but does not answer within {self.timeout_s:g} s: the node "
                "hangs, or this is not a CQL port",
                kind="no-connection",
            )
        if isinstance(error, CqlError):
            if error.bad_credentials or (self._credentials is None and error.details.get("code") == 0x000A):
                who = f"refuses user {self._credentials[0]}" if self._credentials else "requires user and password"
                return AccessDeniedError(f"{where} {who}: {error}", kind="login")
            if error.unauthorized:
                return AccessDeniedError(f"{where}: {error}", kind="permission")
        if isinstance(error, TimeoutError):
            return UnavailableError(f"{where} does not answer within {self.timeout_s:g} s", kind="no-connection")
        if isinstance(error, ConnectionRefusedError):
            return UnavailableError(f"no node accepts clients at {where}", kind="no-connection")
        return UnavailableError(f"{where}: {error}", kind="no-connection")


def for_lab(name: str | None = None) -> Access:
    """Access to a laboratory cluster.

    Raises
    ------
    LabNotFoundError
        The cluster does not exist.
    """
    cluster = lab.attach(name or "lab")
    tls = cluster.tls
    return Access(
        cluster.contact_points,
        credentials=cluster.credentials,
        tls=None if tls is None else tls.context(),
        runner=LabRunner(cluster),
    )


def read_credentials(user: str | None, password_file: str | None) -> tuple[str, str] | None:
    """User and password: the user as given or from CHRONOTILE_CASSANDRA_USER, the password from a file or from
    CHRONOTILE_CASSANDRA_PASSWORD. None if no user is given.

    Raises
    ------
    InvalidInputError
        The password of a user is missing, or the file cannot be read.
    """
    user = user or os.environ.get(USER_VARIABLE)
    if not user:
        return None
    if password_file is None:
        password = os.environ.get(PASSWORD_VARIABLE)
        if password is None:
            raise InvalidInputError(
                f"no password for user {user}: pass --password-file or set {PASSWORD_VARIABLE}", kind="invalid-request"
            )
        return user, password
    try:
        return user, Path(password_file).read_text(encoding="utf-8").strip("\r\n")
    except OSError as error:
        raise InvalidInputError(f"{password_file}: {error.strerror}", kind="invalid-request") from None


def read_beans(text: str, host: Host) -> dict[str, Bean]:
    """Parse beans from the JSON of ``sjk mxdump``, which may follow a warning line."""
    start = text.find("{")
    try:
        return {bean_name(bean["name"]): bean for bean in json.loads(text[start:])["beans"]} if start >= 0 else {}
    except (ValueError, KeyError, TypeError):
        words = " ".join(text.split())[:120]
        raise UnavailableError(f"nodetool sjk of {host} returned no beans: {words}", kind="no-connection") from None


def bean_name(name: str) -> str:
    """A bean's name with its keys sorted: agents differ in their order."""
    domain, _, keys = name.partition(":")
    return f"{domain}:{','.join(sorted(keys.split(',')))}"


def _template(text: str, option: str, example: str) -> Template:
    found = Template(text, option, {"host"})
    if not found.fields:
        raise InvalidInputError(f"{option} {text!r} lacks {{host}}: write it like '{example}'", kind="invalid-request")
    return found


def _run(command: Sequence[str], what: str, timeout_s: float) -> str:
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=timeout_s,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"{what} timed out after {timeout_s:g} s", kind="no-connection") from None
    except OSError as error:
        raise UnavailableError(f"{what}: {error.strerror or error}", kind="no-connection") from None
    if done.returncode != 0:
        output = " ".join((done.stderr or done.stdout).split())[:300]
        raise UnavailableError(f"{what} ended with {done.returncode}: {output}", kind="no-connection")
    return done.stdout


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def _host_and_port(point: str) -> tuple[str, int]:
    point = point.strip()
    try:
        return str(ipaddress.ip_address(point.strip("[]"))), NATIVE_PORT
    except ValueError:
        pass
    host, colon, port = point.rpartition(":")
    if not colon:
        host, port = point, str(NATIVE_PORT)
    if not host or not port.isdigit() or not 0 < int(port) < 65_536:
        raise InvalidInputError(f"invalid contact point {point!r}: write HOST or HOST:PORT", kind="invalid-request")
    return host.strip("[]"), int(port)

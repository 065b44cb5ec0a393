"""Network addresses of a cluster's nodes, and cutting nodes off.

On the loopback network the nodes listen on addresses of 127.77.0.0/16: this needs neither root nor preparation. No node
can be isolated there: packets to other nodes come from 127.0.0.1, whichever node sends them. With network namespaces
(root only) each node has its own interface, joined to the others by a bridge that only this machine sees. To isolate a
node, its interface is detached from the bridge: packets to and from it, including those of clients, are lost, and other
processes are not affected.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

from chronotile_tools.lab import processes
from chronotile_tools.lab.errors import LabError

Kind = Literal["loopback", "namespaces"]

_LOOPBACK, _BENCHMARK = "127.77", "198.18"
"""Address range for namespaces; 198.18.0.0/15 is reserved for network tests, so no real host uses it."""
_JMX_FIRST, _JMX_LAST = 7199, 7998
PREFIX_ARGUMENT, JMX_ARGUMENT = "-Dchronotile.lab.network=", "-Dcassandra.jmx.local.port="
"""Arguments of node processes that contain addresses and ports; they reveal what a node of any home will use before it
binds them.
"""

_NO_SUCH = re.compile(r"No such file|Cannot find device|does not exist")


def choose(asked: str) -> Kind:
    """Choose the kind of network: ``auto`` selects namespaces if they work.

    Raises
    ------
    LabError
        Namespaces are requested but cannot be created (``lab-network``).
    """
    if asked == "loopback":
        return "loopback"
    obstacle = namespaces_obstacle()
    if obstacle is None:
        return "namespaces"
    if asked == "namespaces":
        raise LabError(f"cannot use network namespaces: {obstacle}", kind="lab-network")
    return "loopback"


def namespaces_obstacle() -> str | None:
    """Reason why this process cannot use network namespaces; None if it can. Creates one and removes it."""
    if os.geteuid() != 0:
        return "root is required"
    if shutil.which("ip") is None:
        return "the program ip is missing (on Debian: apt-get install iproute2)"
    probe, bridge = f"ctlab-probe-{os.getpid()}", f"ctp{os.getpid() % 10**9}"
    try:
        _ip("netns", "add", probe)
        _ip("link", "add", bridge, "type", "bridge")
        _ip("link", "add", f"{bridge}v", "master", bridge, "type", "veth", "peer", "name", "eth0", "netns", probe)
    except LabError as error:
        return str(error)
    finally:
        _ip_quietly("netns", "delete", probe)
        _ip_quietly("link", "delete", bridge)
    return None


class Network:
    """The network of one cluster: 254 addresses with the same first three numbers."""

    kind: Kind

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        """For example ``127.77.3``."""
        self.number = int(prefix.rpartition(".")[2])

    def address(self, number: int) -> str:
        """The address that ends in `number`."""
        return f"{self.prefix}.{number}"

    def holds(self, address: str) -> bool:
        """Whether a node may have this address."""
        prefix, _, last = address.rpartition(".")
        return prefix == self.prefix and last.isdigit() and 1 <= int(last) <= 250 and last == str(int(last))

    def raise_node(self, index: int, address: str) -> None:
        """Make the node's address usable, also after a reboot."""

    def command_prefix(self, index: int) -> list[str]:
        """Command prefix that runs a command in the node's network."""
        return []

    def jmx_port(self, taken: Iterable[int]) -> int:
        """A port for a new node's JMX, given the ports `taken` by other nodes of the cluster. A network that
        gives each node its own ports always answers with the same port."""
        return _JMX_FIRST

    def cut(self, index: int) -> None:
        """Drop all traffic to and from the node."""
        raise LabError(
            "nodes on the loopback network cannot be cut off: start a cluster as root with `chronotile lab "
            "up --network namespaces`, or pause the node instead",
            kind="lab-network",
        )

    def heal(self, index: int) -> None:
        """Undo `cut`."""

    def drop_node(self, index: int) -> None:
        """Release the node's address."""

    def drop(self) -> None:
        """Remove the network."""


class Loopback(Network):
    """Addresses of 127.77.0.0/16."""

    kind = "loopback"

    def jmx_port(self, taken: Iterable[int]) -> int:
        """A free port of 127.0.0.1, which all nodes of the machine share."""
        used = set(taken)
        for port in range(_JMX_FIRST, _JMX_LAST + 1):
            if port in used or processes.with_argument(f"{JMX_ARGUMENT}{port}"):
                continue
            if _bindable("127.0.0.1", port):
                return port
        raise LabError(f"no port of 127.0.0.1 from {_JMX_FIRST} to {_JMX_LAST} is free", kind="lab-network")


class Namespaces(Network):
    """A bridge, and for each node a namespace with one interface."""

    kind = "namespaces"

    @property
    def bridge(self) -> str:
        """The bridge's name."""
        return f"ctlab{self.number}"

    def namespace(self, index: int) -> str:
        """The name of a node's namespace."""
        return f"{self.bridge}-{index}"

    def veth(self, index: int) -> str:
        """Name of the bridge's end of a node's veth pair."""
        return f"{self.bridge}n{index}"

    def raise_bridge(self) -> None:
        """Create the bridge. Raises LabError if it exists."""
        _ip("link", "add", self.bridge, "type", "bridge")
        _ip("address", "add", f"{self.prefix}.254/24", "dev", self.bridge)
        _ip("link", "set", self.bridge, "up")

    def raise_node(self, index: int, address: str) -> None:
        """Create the node's namespace with this one address, and the bridge if a reboot removed it."""
        if not _device_exists(self.bridge):
            self.raise_bridge()
        inside = ("-n", self.namespace(index))
        if not Path("/run/netns", self.namespace(index)).exists():
            _ip("netns", "add", self.namespace(index))
            peer = ("peer", "name", "eth0", "netns", self.namespace(index))
            _ip("link", "add", self.veth(index), "master", self.bridge, "type", "veth", *peer)
        _ip(*inside, "address", "flush", "dev", "eth0")
        _ip(*inside, "address", "add", f"{address}/24", "dev", "eth0")
        for interface in ("lo", "eth0"):
            _ip(*inside, "link", "set", interface, "up")
        _ip("link", "set", self.veth(index), "up")

    def command_prefix(self, index: int) -> list[str]:
        """Command prefix that enters the namespace."""
        return [str(shutil.which("ip")), "netns", "exec", self.namespace(index)]

    def cut(self, index: int) -> None:
        """Detach the node from the bridge."""
        _ip("link", "set", self.veth(index), "nomaster")

    def heal(self, index: int) -> None:
        """Attach the node to the bridge again."""
        _ip("link", "set", self.veth(index), "master", self.bridge)

    def drop_node(self, index: int) -> None:
        """Remove the namespace, which also removes the veth pair."""
        _ip_quietly("link", "delete", self.veth(index))
        _ip_quietly("netns", "delete", self.namespace(index))

    def drop(self) -> None:
        """Remove every namespace of the cluster and its bridge."""
        for path in Path("/run/netns").glob(f"{self.bridge}-*"):
            self.drop_node(int(path.name.rpartition("-")[2]))
        _ip_quietly("link", "delete", self.bridge)


def existing(kind: str, prefix: str) -> Network:
    """The existing network of a cluster."""
    return Namespaces(prefix) if kind == "namespaces" else Loopback(prefix)


def reserve(kind: Kind, taken: Iterable[str], ports: Iterable[int]) -> Network:
    """Reserve a network that no cluster (prefixes `taken`) and no other program uses. The caller holds the lock for
    assigning networks.
    """
    used = set(taken)
    for network in _numbered(kind):
        if network.prefix in used:
            continue
        if isinstance(network, Namespaces):
            # Bridge names are unique in the kernel, so creating the bridge reserves the network across homes.
            if not _device_exists(network.bridge):
                with contextlib.suppress(LabError):
                    network.raise_bridge()
                    return network
        elif not processes.with_argument(f"{PREFIX_ARGUMENT}{network.prefix}") and all(
            _bindable(network.address(number), port) for number in (1, 2, 3) for port in ports
        ):
            return network
    raise LabError("all networks of the laboratory are in use: take a cluster down", kind="lab-network")


def _numbered(kind: Kind) -> Iterator[Network]:
    for number in range(1, 255):
        yield Namespaces(f"{_BENCHMARK}.{number}") if kind == "namespaces" else Loopback(f"{_LOOPBACK}.{number}")


def _bindable(address: str, port: int) -> bool:
    with socket.socket() as probe:
        # Like the server, ignore connections in TIME_WAIT.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise LabError(f"cannot bind {address}: {error.strerror}", kind="lab-network") from error
    return True


def _device_exists(name: str) -> bool:
    return Path("/sys/class/net", name).exists()


def _ip(*arguments: str) -> None:
    """Run ``ip``; raise LabError with its message if it fails."""
    program = shutil.which("ip")
    if program is None:
        raise LabError("the program ip is missing (on Debian: apt-get install iproute2)", kind="lab-network")
    done = subprocess.run(
        [program, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30, check=False
    )
    if done.returncode != 0:
        output = done.stderr.strip() or f"status {done.returncode}"
        raise LabError(f"ip {' '.join(arguments)}: {output}", kind="lab-network")


def _ip_quietly(*arguments: str) -> None:
    """Run ``ip`` to remove something that may not exist."""
    try:
        _ip(*arguments)
    except LabError as error:
        if not _NO_SUCH.search(str(error)):
            raise

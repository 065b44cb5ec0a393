"""Parse a node's managed beans: nodetool prints some values in Java notation, an agent as JSON."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from chronotile_tools.ops.access import Bean
from chronotile_tools.ops.state import Heap, Latency, Requests

__all__ = ["data_folders", "node_fields", "seen"]

Beans = Mapping[str, Bean]

_STORAGE = "org.apache.cassandra.db:type=StorageService"
_KINDS = ("Read", "Write", "RangeSlice", "CASRead", "CASWrite")
_MICROSECONDS = {"microseconds": 1e-3, "milliseconds": 1.0, "nanoseconds": 1e-6, "seconds": 1e3}


def node_fields(beans: Beans) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """Fields of :class:`~chronotile_tools.ops.state.Node` from beans, and a list of missing beans."""
    fields: dict[str, Any] = {}
    missing: list[tuple[str, str]] = []
    storage = beans.get(_STORAGE)
    if storage is None:
        missing.append(("jmx", f"no bean {_STORAGE}: check that this is Cassandra's JMX port"))
    else:
        fields |= _own(storage)
    fields |= {
        "heap": _heap(beans),
        "load_bytes": _count(beans, "Storage", "Load"),
        "exceptions": _count(beans, "Storage", "Exceptions"),
        "hints_written": _count(beans, "Storage", "TotalHints"),
        "compactions_pending": _count(beans, "Compaction", "PendingTasks"),
        "commitlog_pending": _count(beans, "CommitLog", "PendingTasks"),
        "requests": _requests(beans),
        "dropped": _dropped(beans),
    }
    system = beans.get("java.lang:type=OperatingSystem", {})
    if "ProcessCpuLoad" in system:
        fields["cpu_share"] = max(0.0, float(system["ProcessCpuLoad"]))
    if "SystemLoadAverage" in system and system.get("AvailableProcessors"):
        fields["system_load"] = float(system["SystemLoadAverage"]) / int(system["AvailableProcessors"])
    for name in ("heap", "compactions_pending", "requests"):
        if not fields[name]:
            missing += [] if fields[name] == 0 else [("jmx", f"no beans of {name}")]
    return {name: value for name, value in fields.items() if value not in (None, {})}, missing


def seen(beans: Beans) -> dict[str, str]:
    """The node's view of each node: ``UN``, ``DN``, ``UJ``, ... by address.

    Former nodes stay among the unreachable ones for days; nodes without an id are not in the ring.
    """
    storage = beans.get(_STORAGE, {})
    letters = dict.fromkeys(mapping(storage.get("EndpointToHostId")), "N")
    for attribute, letter in (("JoiningNodes", "J"), ("LeavingNodes", "L"), ("MovingNodes", "M")):
        letters |= {_address(one): letter for one in listing(storage.get(attribute))}
    live, dead = ({_address(one) for one in listing(storage.get(name))} for name in ("LiveNodes", "UnreachableNodes"))
    return {
        address: ("U" if address in live else "D" if address in dead else "?") + letters.get(address, "?")
        for address in {*letters, *live}
    }


def data_folders(beans: Beans) -> list[str]:
    """Data directories of the node, on its machine."""
    return listing(beans.get(_STORAGE, {}).get("AllDataFileLocations"))


def mapping(value: Any) -> dict[str, str]:
    """A map, as JSON or as Java prints it: ``{a=1, b=2}``."""
    if isinstance(value, Mapping):
        return {str(key): str(one) for key, one in value.items()}
    parts = re.findall(r"([^{},=\s][^=]*?)=([^,{}]*)(?=, |\}$)", value) if isinstance(value, str) else []
    return {key.strip(): one for key, one in parts}


def listing(value: Any) -> list[str]:
    """A list, as JSON or as Java prints it: ``[a, b]``."""
    if isinstance(value, list):
        return [str(one) for one in value]
    inner = value.strip("[] ") if isinstance(value, str) else ""
    return [part.strip() for part in inner.split(",") if part.strip()]


def _own(storage: Bean) -> dict[str, Any]:
    generation, transport = storage.get("CurrentGenerationNumber"), storage.get("NativeTransportRunning")
    tokens = listing(storage.get("Tokens"))
    return {
        "mode": storage.get("OperationMode"),
        "release": storage.get("ReleaseVersion"),
        "schema": storage.get("SchemaVersion"),
        "native_transport": None if transport is None else str(transport).lower() == "true",
        "started": datetime.fromtimestamp(int(generation), UTC) if generation else None,
        "tokens": len(tokens) or None,
    }


def _metric(beans: Beans, type_: str, name: str, **keys: str) -> Bean:
    parts = sorted([f"type={type_}", f"name={name}", *(f"{key}={value}" for key, value in keys.items())])
    return beans.get(f"org.apache.cassandra.metrics:{','.join(parts)}", {})


def _count(beans: Beans, type_: str, name: str) -> int | None:
    bean = _metric(beans, type_, name)
    value = bean.get("Value", bean.get("Count"))
    return None if value is None else int(value)


def _heap(beans: Beans) -> Heap | None:
    """Heap usage after the last collection: later usage includes garbage."""
    collectors = [bean for name, bean in beans.items() if name.startswith("java.lang:") and "GarbageCollector" in name]
    last = max(
        (bean.get("LastGcInfo") or {} for bean in collectors), key=lambda info: info.get("endTime", 0), default={}
    )
    pools = _pools_after(last)
    if not pools:
        return None
    return Heap(
        sum(int(usage["used"]) for usage in pools),
        # G1 pools share one heap, and only one of them reports the maximum size.
        sum(max(0, int(usage["max"])) for usage in pools),
        sum(int(bean["CollectionCount"]) for bean in collectors),
        sum(int(bean["CollectionTime"]) for bean in collectors),
        int(last["duration"]),
    )


def _pools_after(collection: Bean) -> list[Mapping[str, Any]]:
    """Usage of the heap's pools after a collection: nodetool writes entries with key and value, an agent a map."""
    after = collection.get("memoryUsageAfterGc") or {}
    usages = {one["key"]: one["value"] for one in after} if isinstance(after, list) else dict(after)
    return [usage for pool, usage in usages.items() if re.search(r"Eden|Survivor|Old|Tenured|Z|Shenandoah", pool)]


def _requests(beans: Beans) -> dict[str, Requests]:
    found = {}
    for kind in _KINDS:
        timer = _metric(beans, "ClientRequest", "Latency", scope=kind)
        if timer:
            counts = (
                int(_metric(beans, "ClientRequest", name, scope=kind).get("Count", 0))
                for name in ("Timeouts", "Unavailables", "Failures")
            )
            found[kind] = Requests(_latency(timer), *counts)
    return found


def _latency(timer: Bean) -> Latency:
    scale = _MICROSECONDS.get(str(timer.get("DurationUnit", "microseconds")).lower(), 1e-3)

    def of(name: str) -> float:
        value = float(timer.get(name) or 0)
        return value * scale if value == value else 0.0

    return Latency(
        int(timer.get("Count", 0)), of("50thPercentile"), of("99thPercentile"), of("Max"), of("95thPercentile")
    )


def _dropped(beans: Beans) -> dict[str, int]:
    found = {}
    for name, bean in beans.items():
        if name.startswith("org.apache.cassandra.metrics:name=Dropped,scope=") and "type=DroppedMessage" in name:
            found[name.split("scope=")[1].split(",")[0]] = int(bean.get("Count", 0))
    # Releases before 4.0 use other names; kinds without drops are missing.
    return {kind: count for kind, count in sorted(found.items()) if count or kind in ("MUTATION_REQ", "READ_REQ")}


def _address(text: str) -> str:
    """The address in ``/10.0.0.1``, ``node/10.0.0.1`` or ``10.0.0.1:7000``."""
    text = text.rpartition("/")[2]
    return text.rpartition(":")[0] if text.count(":") == 1 else text

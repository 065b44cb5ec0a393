"""Repair tables segment by segment, as a procedure: planned, leased, journalled and resumable."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, ClassVar

from chronotile.errors import ChronotileError, InvalidInputError, UnavailableError
from chronotile.terminal import count_text
from chronotile_tools.ops.procedures.engine import Context, Procedure, Step
from chronotile_tools.ops.procedures.findings import Finding
from chronotile_tools.ops.procedures.nodes import all_members, answers, for_each_node, node_statuses
from chronotile_tools.ops.procedures.preflight import preflight
from chronotile_tools.ops.repair import reading
from chronotile_tools.ops.repair.segments import (
    BYTES_MAX,
    PARTITIONS_MAX,
    SECONDS_MAX,
    Estimate,
    RingRange,
    SegmentSizer,
    disjoint,
    mebibytes,
    megabits_a_sender,
    next_segment,
    remaining,
    share,
)
from chronotile_tools.ring import SIZE

PENDING_MAX = 20
"""Most pending compactions on a replica during repair; above, the repair pauses, because it adds compactions."""
PRESSURE_S = 60.0
"""Seconds for which the number of pending compactions is cached."""
PENDING_LOOK_S = 15.0
ATTEMPTS = 5
"""Attempts per segment before the repair stops; finished segments are kept."""
CONSECUTIVE_TIMEOUTS_MAX = 10
"""Consecutive timeouts, each with half the segment, before the repair stops: something else must be wrong."""
SMALL_PARTITIONS = 2**16
SMALL_BYTES = 1 << 30
"""Tables up to this total size are repaired with one command per node: a segment for each range of the ring takes
seconds, minutes in total."""
SMALL_SECONDS = 300.0
_TERMINATE = (
    "sjk", "mx", "-mc", "-b", "org.apache.cassandra.db:type=StorageService", "-op", "forceTerminateAllRepairSessions",
)  # fmt: skip


@dataclass(frozen=True)
class Repair(Procedure):
    """Repair tables: compare their replicas, and stream missing rows.

    Each table is repaired by sub-ranges of the ring. A segment has at most 2^20 partitions and 50 GiB by the nodes'
    estimates, and is sized to take 1 to 15 minutes. No node takes part in two segments at once. Repair pauses while
    compactions are pending. Small tables are repaired by one command per node.
    """

    name: ClassVar[str] = "repair"
    groups: list[list[str]]
    """Full names of tables; those of a group, small ones of one keyspace, are repaired together."""
    capacity_mbit: float = 0.0
    """Bandwidth of streams to one node, in Mbit/s; 0 keeps the nodes' limits."""
    segment_s: float = SECONDS_MAX
    """Segments that take longer are stopped and halved."""
    anyway: bool = False
    """Whether to repair even if the nodes repair automatically."""

    @classmethod
    def of(
        cls,
        context: Context,
        *,
        keyspaces: Sequence[str] = (),
        tables: Sequence[str] = (),
        capacity_mbit: float = 0.0,
        segment_s: float = SECONDS_MAX,
        anyway: bool = False,
    ) -> Repair:
        """Create the procedure for the tables of these keyspaces and for these tables (``keyspace.table``); for all if
        none are named.
        """
        names = reading.repairable(context.nodes, list(keyspaces), list(tables))
        if not names:
            raise InvalidInputError("the cluster has no tables with more than one replica", kind="table-not-found")
        return cls(grouped(context, names), capacity_mbit, segment_s, anyway)

    def checks(self, context: Context) -> list[Finding]:
        """The preflight checks, and whether the nodes repair automatically."""
        found = preflight(context.nodes)
        native = [one.address for one in all_members(context.nodes) if answers(context.nodes, one.address)
                  and reading.native_scheduler(context.nodes, one.address)]  # fmt: skip
        if native:
            text = f"{', '.join(native)} repair automatically (auto_repair), which is preferable"
            found.append(
                Finding(
                    "warning" if self.anyway else "refused", "scheduler", f"{text}; pass --anyway to repair regardless"
                )
            )
        return found

    def cost(self, context: Context) -> list[str]:
        """Costs by the nodes' estimates, one sentence each."""
        sentences = []
        estimates = reading.estimates(context.nodes, [name for group in self.groups for name in group])
        for group in self.groups:
            ranges, known = _ranges(context, group), [one for name in group for one in estimates[name]]
            partitions, size = map(sum, zip(*(share(one, known) for one in ranges), strict=True))
            small = _is_small(known) and self._fits_node_commands(context, group)
            pieces = (
                count_text(len(_replicas(ranges)), "node")
                if small
                else count_text(len(_planned(ranges, known)), "segment")
            )
            what = f"{group[0]}" + (f" and {len(group) - 1} more" if len(group) > 1 else "")
            sentences.append(
                f"{what}: about {partitions:,.0f} partitions, {size / 2**20:,.0f} MiB in each copy, {pieces}."
            )
        sentences.append("Each replica reads all of its data once; only differences use the network.")
        return sentences

    def steps(self, context: Context) -> list[Step]:
        """One step per group of tables, between setting and restoring the stream limits."""
        limit = [self._limit_step(context)] if self.capacity_mbit else []
        back = [self._back_step(context)] if self.capacity_mbit else []
        return [*limit, *(self._group_step(context, group) for group in self.groups), *back]

    def _group_step(self, context: Context, group: list[str]) -> Step:
        name = group[0] if len(group) == 1 else f"{group[0]} and {len(group) - 1} more"
        work = _Group(context, group, self.segment_s)

        def repair() -> None:
            if self._fits_node_commands(context, group):
                work.run()
            else:
                work.run_segments()

        return Step(f"repair {','.join(group)}", f"repair {name}", repair, work.prove, changes=())

    def _fits_node_commands(self, context: Context, group: Sequence[str]) -> bool:
        """Whether a node may repair all its ranges with one command: not if more nodes would stream than the limit
        allows.
        """
        return not self.capacity_mbit or len({one.replicas for one in _ranges(context, group)}) == 1

    def _limit_step(self, context: Context) -> Step:
        def do() -> None:
            known = [one.address for one in all_members(context.nodes)]
            if "throughput_mbit" not in context.notes:
                # Record the limit before changing it: a resumed run must not take ours for the original.
                old = for_each_node(known, lambda one: reading.throughput_mbit(context.nodes, one))
                whole = for_each_node(known, lambda one: reading.whole_files_mib(context.nodes, one))
                context.note(throughput_mbit=old, whole_files_mib=whole)
            limit = megabits_a_sender(self.capacity_mbit, self._all_ranges(context))
            apart = [address for address, old in context.notes.get("whole_files_mib", {}).items() if old is not None]
            _set_limits(context, dict.fromkeys(known, limit), dict.fromkeys(apart, mebibytes(limit)))

        def prove() -> str:
            limit = megabits_a_sender(self.capacity_mbit, self._all_ranges(context))
            old = context.notes["throughput_mbit"]
            found = for_each_node(list(old), lambda one: reading.throughput_mbit(context.nodes, one))
            whole = for_each_node(list(old), lambda one: reading.whole_files_mib(context.nodes, one))
            if any(value == 0 or value > limit * 1.05 for value in found.values()) or any(
                value is not None and (value == 0 or value > mebibytes(limit) * 1.05) for value in whole.values()
            ):
                raise ChronotileError(f"cannot set the stream limits: {found}, {whole}", kind="not-confirmed")
            return f"each node streams at most {limit} Mbit/s, whole files {mebibytes(limit)} MiB/s"

        return Step("limit", f"limit streams to {self.capacity_mbit:g} Mbit/s towards each node", do, prove)

    def _back_step(self, context: Context) -> Step:
        def prove() -> str:
            old = context.notes["throughput_mbit"]
            return f"limits restored: {', '.join(f'{address} {value:.0f} Mbit/s' for address, value in old.items())}"

        return Step("limit back", "restore the stream limits", lambda: self.give_up(context), prove)

    def give_up(self, context: Context) -> None:
        """Restore the stream limits."""
        _set_limits(context, context.notes.get("throughput_mbit", {}), context.notes.get("whole_files_mib", {}))

    def _all_ranges(self, context: Context) -> list[RingRange]:
        return [one for group in self.groups for one in _ranges(context, group)]


def _set_limits(context: Context, mbit: Mapping[str, float], whole_files_mib: Mapping[str, float | None]) -> None:
    """Set the stream throughput limits of nodes, by address: 0 for no limit, None for a node without its own limit."""

    def set_of(address: str) -> None:
        context.nodes.nodetool(address, "setstreamthroughput", *_throughput_arguments(mbit[address]), timeout_s=60)
        apart = whole_files_mib.get(address)
        if apart is not None:
            context.nodes.nodetool(address, "setstreamthroughput", "-e", _whole_number(apart), timeout_s=60)

    for_each_node(list(mbit), set_of)


def _throughput_arguments(mbit: float) -> tuple[str, ...]:
    """A stream throughput limit as nodetool arguments: whole Mbit/s, or from 4.1 whole MiB/s, the default's unit."""
    mebibytes_a_second = mbit * 1e6 / 8 / 2**20
    if mbit and abs(mebibytes_a_second - round(mebibytes_a_second)) < 1e-6:
        return "-m", str(round(mebibytes_a_second))
    return (_whole_number(mbit),)


def _whole_number(limit: float) -> str:
    """Round a limit for nodetool, to at least 1, because 0 means no limit."""
    return str(max(1, round(limit)) if limit else 0)


class _Group:
    """The repair of some tables of one keyspace."""

    def __init__(self, context: Context, tables: list[str], segment_s: float, purpose: str = "") -> None:
        self.context, self.tables, self.segment_s = context, tables, segment_s
        self.keyspace = tables[0].partition(".")[0]
        self.names = [name.partition(".")[2] for name in tables]
        self.pace = SegmentSizer()
        self.key = ",".join(tables)
        self.purpose = purpose
        self._consecutive_timeouts = 0
        self._narrow: dict[int, int] = {}
        """Largest segment width by start token, where a segment timed out; fast segments elsewhere do not widen it."""
        self._troubled = False
        self._calm_until: dict[str, float] = {}

    def run(self) -> None:
        """Repair what is not yet repaired according to the journal: small tables node by node, others in segments."""
        known = _known(self.context, self.tables)
        # A repair that was begun in segments, according to the journal, continues in segments.
        small = _is_small(known) and not self._done()
        if not (small and self._run_nodes()):
            self.run_segments(known)

    def run_segments(self, known: Sequence[Estimate] | None = None) -> None:
        """Repair in segments what is not yet repaired according to the journal."""
        ranges = _ranges(self.context, self.tables)
        left = remaining(ranges, self._done())
        known = _known(self.context, self.tables) if known is None else known
        total = sum(one.width for one in ranges)
        attempts: Counter[RingRange] = Counter()
        workers: dict[Future[bool], RingRange] = {}
        with ThreadPoolExecutor(max_workers=8) as pool:
            while left or workers:
                # No node takes part in two segments at once: choose a range whose replicas are all free.
                busy = [replica for segment in workers.values() for replica in segment.replicas]
                chosen = disjoint(left, busy)
                if chosen is not None:
                    left.remove(chosen)
                    width_max = min(self.pace.width_max, self._narrow.get(chosen.start, SIZE))
                    segment = next_segment(chosen, known, width_max)
                    rest = remaining([chosen], [(segment.start, segment.end)])
                    # Queue what is left of the range: the segments of a range are taken consecutively from its start.
                    left += rest
                    workers[pool.submit(self._segment, segment)] = segment
                    continue
                # Every range that is left has a busy replica: wait until a segment ends.
                for future in wait(workers, return_when=FIRST_COMPLETED).done:
                    segment = workers.pop(future)
                    if not future.result():
                        # A halved segment counts as another segment.
                        attempts[segment] += 1
                        self._give_up(segment, attempts[segment])
                        left.append(segment)
                    share_done = 1 - sum(one.width for one in [*left, *workers.values()]) / max(total, 1)
                    self.context.echo(f"      {self.key.partition(',')[0]}: {share_done:.0%}")

    def _run_nodes(self) -> bool:
        """Repair with one command per node, each for the ranges of which the node is the first replica.

        Return False if one failed or timed out: segments then locate the problem.
        """
        replicas = _replicas(_ranges(self.context, self.tables))
        whole = RingRange(0, 0, replicas)
        for address in replicas:
            if address in self._nodes_done():
                continue
            self._await_replicas(whole)
            self._await_calm(whole)
            words = ["repair", "-full", "-pr", self.keyspace, *self.names]
            try:
                output = self.context.nodes.nodetool(address, *words, timeout_s=min(SMALL_SECONDS, self.segment_s))
            except ChronotileError as error:
                self.context.echo(f"      {address} could not repair {self.keyspace} in one command: {error}")
                self._terminate(whole)
                return False
            if "Repair completed successfully" not in output:
                return False
            self._log("node", address=address, of=len(replicas))
            self.context.echo(f"      {self.tables[0]}: {len(self._nodes_done()) / len(replicas):.0%}")
        return True

    def _give_up(self, segment: RingRange, attempts: int) -> None:
        if attempts >= ATTEMPTS or self._consecutive_timeouts >= CONSECUTIVE_TIMEOUTS_MAX:
            what = (
                f"{self._consecutive_timeouts} consecutive segments timed out"
                if self._consecutive_timeouts
                else f"failed {attempts} times"
            )
            raise UnavailableError(
                f"the segment from {segment.start} of {self.key}: {what}; finished segments are kept: see "
                "the journal, fix the reported problem, and run again",
                kind="repair-failed",
            )

    def prove(self) -> str:
        """Compare all replicas again."""
        streams = preview_differences(self.context, self.tables)
        segments = self._done()
        done = (
            count_text(len(segments), "segment")
            if segments
            else f"the ranges of {count_text(len(self._nodes_done()), 'node')}"
        )
        if not streams:
            return f"{done} repaired; a preview has nothing to stream"
        # Concurrent writes cause harmless temporary differences.
        time.sleep(2)
        again = preview_differences(self.context, self.tables)
        if not again:
            return f"{done} repaired; a preview has nothing to stream"
        return f"{done} repaired; a preview finds {again}, because of concurrent writes: preview again without writes"

    def _done(self) -> list[tuple[int, int]]:
        return [(entry["start"], entry["end"]) for entry in self._logged("segment")]

    def _nodes_done(self) -> set[str]:
        return {entry["address"] for entry in self._logged("node")}

    def _logged(self, event: str) -> list[dict[str, Any]]:
        kept = self.context.journal
        entries = kept.of(event) if kept is not None else iter(())
        return [entry for entry in entries if entry["tables"] == self.key and entry["purpose"] == self.purpose]

    def _log(self, event: str, **facts: object) -> None:
        if self.context.journal is not None:
            self.context.journal.write(event, tables=self.key, purpose=self.purpose, **facts)

    def _log_segment(self, event: str, segment: RingRange, **facts: object) -> None:
        self._log(event, start=segment.start, end=segment.end, **facts)

    def _segment(self, segment: RingRange) -> bool:
        """Repair one segment; return False if it must be tried again."""
        self._await_replicas(segment)
        self._await_calm(segment)
        asked, began = segment.replicas[0], time.monotonic()
        tokens = ["-st", str(segment.start), "-et", str(segment.end)]
        try:
            output = self.context.nodes.nodetool(
                asked, "repair", "-full", *tokens, self.keyspace, *self.names, timeout_s=self.segment_s
            )
        except ChronotileError as error:
            self._troubled = True
            seconds = time.monotonic() - began
            late = seconds >= self.segment_s
            self._log_segment("segment-failed", segment, error=str(error), seconds=round(seconds, 1), timed_out=late)
            if late:
                # nodetool has ended, but the repair it started may still run.
                self._terminate(segment)
                self.pace.timed_out(segment.width)
                self._narrow[segment.start] = max(1, segment.width // 2)
                self._consecutive_timeouts += 1
            return False
        seconds = time.monotonic() - began
        if "Repair completed successfully" not in output:
            self._log_segment(
                "segment-failed", segment, error=" ".join(output.split())[-300:], seconds=round(seconds, 1)
            )
            return False
        self._log_segment("segment", segment, seconds=round(seconds, 1), width=segment.width)
        self.pace.finished(segment.width, seconds)
        self._consecutive_timeouts, self._troubled = 0, False
        return True

    def _terminate(self, segment: RingRange) -> None:
        for replica in segment.replicas:
            try:
                self.context.nodes.nodetool(replica, *_TERMINATE, timeout_s=120)
            except ChronotileError as error:
                self.context.echo(f"      cannot stop the repair on {replica}: {error}")

    def _await_replicas(self, segment: RingRange) -> None:
        """Wait for replicas that are down: a repair without them would have to be repeated."""
        deadline = time.monotonic() + self.context.node_s
        reported = False
        while True:
            away = [replica for replica in segment.replicas if not answers(self.context.nodes, replica)]
            if not away and self._troubled:
                # After a failure, also check the nodes' own view, which costs more than a liveness check.
                normal = {one.address for one in node_statuses(self.context.nodes, segment.replicas[0]) if one.normal}
                away = sorted(set(segment.replicas) - normal)
            if not away:
                return
            if time.monotonic() > deadline:
                raise UnavailableError(
                    f"{', '.join(away)} is down: finished segments are kept; bring it back and run again",
                    kind="no-node",
                )
            if not reported:
                self.context.echo(f"      waiting for {', '.join(away)}")
                reported = True
            time.sleep(1)

    def _await_calm(self, segment: RingRange) -> None:
        """Wait while a replica has too many pending compactions."""
        while asked := [one for one in segment.replicas if time.monotonic() > self._calm_until.get(one, 0.0)]:
            pending = for_each_node(asked, lambda one: reading.pending_compactions(self.context.nodes, one))
            for replica, count in pending.items():
                if count <= PENDING_MAX:
                    self._calm_until[replica] = time.monotonic() + PRESSURE_S
                else:
                    self.context.echo(f"      {replica} has {count} pending compactions: waiting")
            if max(pending.values()) > PENDING_MAX:
                time.sleep(PENDING_LOOK_S)


def grouped(context: Context, names: Sequence[str]) -> list[list[str]]:
    """Group tables: small ones of a keyspace together, within the limits of one segment."""
    found: list[list[str]] = []
    room: dict[str, tuple[list[str], float, float]] = {}
    estimates = reading.estimates(context.nodes, names)
    for name in names:
        keyspace, known = name.partition(".")[0], estimates[name]
        partitions, size = sum(one.partitions for one in known), sum(one.bytes for one in known)
        group, had, held = room.get(keyspace, ([], 0.0, 0.0))
        if not group or had + partitions > PARTITIONS_MAX or held + size > BYTES_MAX:
            group, had, held = [], 0.0, 0.0
            found.append(group)
        group.append(name)
        room[keyspace] = (group, had + partitions, held + size)
    return found


def preview_differences(context: Context, tables: Sequence[str]) -> str:
    """Streams that a repair of these tables would start; empty if all replicas agree."""
    keyspace, names = tables[0].partition(".")[0], [name.partition(".")[2] for name in tables]
    differing = []
    for address in _replicas(_ranges(context, tables)):
        # Each node checks its primary ranges, which together cover the ring once.
        output = context.nodes.nodetool(
            address, "repair", "-full", "-pr", "--preview", keyspace, *names, timeout_s=context.stream_s
        )
        streams = reading.streams_of_preview(output)
        if streams:
            differing.append(f"{streams} ({address})")
    return ", ".join(differing)


def repair_tables(context: Context, tables: Sequence[str], purpose: str) -> None:
    """Repair tables within a step of another procedure.

    `purpose` distinguishes this repair from others of the same tables in the same procedure, so that an interrupted
    repair is continued.
    """
    for group in grouped(context, tables):
        _Group(context, group, SECONDS_MAX, purpose).run()


def _is_small(known: Sequence[Estimate]) -> bool:
    partitions, size = sum(one.partitions for one in known), sum(one.bytes for one in known)
    return partitions <= SMALL_PARTITIONS and size <= SMALL_BYTES


def _ranges(context: Context, tables: Sequence[str]) -> list[RingRange]:
    return reading.ring(context.nodes, tables[0].partition(".")[0])


def _replicas(ranges: Sequence[RingRange]) -> tuple[str, ...]:
    return tuple(sorted({replica for one in ranges for replica in one.replicas}))


def _known(context: Context, tables: Sequence[str]) -> list[Estimate]:
    return [one for known in reading.estimates(context.nodes, tables).values() for one in known]


def _planned(ranges: Sequence[RingRange], known: Sequence[Estimate]) -> Sequence[RingRange]:
    left, found = list(ranges), []
    while left:
        one = left.pop()
        found.append(next_segment(one, known, SegmentSizer().width_max))
        left += remaining([one], [(found[-1].start, found[-1].end)])
    return found

"""Syslog messages: RFC 5424, RFC 3164 as daemons write it, and the RFC 3164 form with an ISO 8601 time."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from chronotile.events.moments import of_texts

__all__ = ["SYSLOG_FIELDS", "parts"]

SYSLOG_FIELDS = {
    "facility": "int32", "severity": "int32", "host": "utf8", "app": "utf8", "procid": "utf8", "msgid": "utf8",
    "structured_data": "utf8", "message": "utf8",
}  # fmt: skip
"""Parts of a syslog message, with their types."""

# RFC 5424, section 6: header fields are printable ASCII, or a dash for none; quotes, backslashes and closing brackets
# are escaped within the values of structured data.
_RFC5424 = (
    r"(?s)^<(?P<pri>\d{1,3})>[1-9]\d{0,2} (?P<time>\S+) (?P<host>\S+) (?P<app>\S+) (?P<procid>\S+) (?P<msgid>\S+) "
    r'(?P<structured_data>-|(?:\[[^\s="\]]+(?: [^\s="\]]+="(?:[^"\\\]]|\\.)*")*\])+)(?: (?P<message>.*))?$'
)
# RFC 3164, section 4.1; files written by a daemon lack the priority.
_RFC3164 = (
    r"(?s)^(?:<(?P<pri>\d{1,3})>)?"
    r"(?:(?P<time>[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d)|(?P<iso>\d{4}-\d\d-\d\dT\S+)) (?P<host>\S+) "
    r"(?:(?P<app>[^\s:\[\]]+)(?:\[(?P<procid>[^\]]*)\])?: ?)?(?P<message>.*)$"
)
_PRIORITY_MAX = 191
_DASHED = ("host", "app", "procid", "msgid", "structured_data")


def parts(texts: pa.Array, year: int | None) -> tuple[pa.Array, dict[str, pa.Array], pa.Array]:
    """Parse syslog messages: times, fields as text by name, and a mask of valid messages.

    Parameters
    ----------
    texts : pa.Array of utf8
    year : int, optional
        Year for the times of RFC 3164, which have none; see :func:`chronotile.events.moments.of_texts`.
    """
    new, old = pc.extract_regex(texts, _RFC5424), pc.extract_regex(texts, _RFC3164)
    is_new = pc.is_valid(new)

    def group(found: pa.Array, name: str) -> pa.Array:
        text = pc.struct_field(found, name)
        return pc.if_else(pc.equal(text, ""), pa.scalar(None, pa.utf8()), text)

    fields: dict[str, pa.Array] = {}
    for name in ("pri", "host", "app", "procid", "message"):
        fields[name] = pc.if_else(is_new, group(new, name), group(old, name))
    for name in ("msgid", "structured_data"):
        fields[name] = group(new, name)
    for name in _DASHED:
        dash = pc.and_(is_new, pc.fill_null(pc.equal(fields[name], "-"), False))
        fields[name] = pc.if_else(dash, pa.scalar(None, pa.utf8()), fields[name])
    # A UTF-8 message may start with a byte order mark, which is not part of the text.
    fields["message"] = pc.replace_substring_regex(fields["message"], "^\ufeff", "")
    priority = fields.pop("pri").cast(pa.int32())
    fields["facility"] = pc.divide(priority, 8).cast(pa.utf8())
    fields["severity"] = pc.bit_wise_and(priority, 7).cast(pa.utf8())
    times = pc.coalesce(
        of_texts(group(new, "time")),
        of_texts(group(old, "iso")),
        of_texts(group(old, "time"), "%b %d %H:%M:%S", year),
    )
    sound = pc.fill_null(pc.less_equal(priority, _PRIORITY_MAX), True)
    return times, fields, pc.and_(pc.or_(is_new, pc.is_valid(old)), sound)

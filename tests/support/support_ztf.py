"""The alert schemas of the ZTF, versions 3.3 and 4.02: https://zwickytransientfacility.github.io/ztf-avro-alert/schema.html."""

from __future__ import annotations

from typing import Any

import pytest

Row = dict[str, Any]


def _fields(kind: str, names: str) -> dict[str, str]:
    """Fields of one type; a question mark after the type means nullable."""
    return dict.fromkeys(names.split(), kind)


_PHOTOMETRY = "magzpsci magzpsciunc magzpscirms clrcoeff clrcounc"
_NEAREST = "distnr magnr sigmagnr chinr sharpnr"
_SHAPE = (
    f"diffmaglim xpos ypos chipsf magap sigmagap {_NEAREST} sky magdiff fwhm classtar mindtoedge magfromlim seeratio "
    f"aimage bimage aimagerat bimagerat elong rb ssdistnr ssmagnr sumrat magapbig sigmagapbig {_PHOTOMETRY}"
)
_DETECTION = {
    "jd": "double", "fid": "int", "pid": "long", "programid": "int", "rbversion": "string",
    **_fields("float?", _SHAPE),
    **_fields("string?", "pdiffimfilename programpi ssnamenr"),
    **_fields("int?", "nid rcid field nneg nbad"),
    "tblid": "long?", "scorr": "double?",
}  # fmt: skip
_PANSTARRS = " ".join(f"sgmag{n} srmag{n} simag{n} szmag{n} sgscore{n} distpsnr{n}" for n in (1, 2, 3))
_CANDIDATE = _DETECTION | {
    "candid": "long", "isdiffpos": "string",
    **_fields("double", "ra dec ranr decnr jdstartref jdendref"),
    "magpsf": "float", "sigmapsf": "float",
    **_fields("int", "ndethist ncovhist nmtchps nframesref nmatches"),
    "rfid": "long", "jdstarthist": "double?", "jdendhist": "double?", "tooflag": "int?",
    **_fields("long?", "objectidps1 objectidps2 objectidps3"),
    **_fields("float?", f"{_PANSTARRS} dsnrms ssnrms dsdiff zpclrcov zpmed clrmed clrrms"),
    **_fields("float?", "neargaia neargaiabright maggaia maggaiabright exptime drb"),
    "drbversion": "string",
}  # fmt: skip
_PREVIOUS = _DETECTION | {
    "candid": "long?", "isdiffpos": "string?", "magpsf": "float?", "sigmapsf": "float?",
    **_fields("double?", "ra dec ranr decnr"),
}  # fmt: skip
_FORCED = {
    "field": "int?", "rcid": "int?", "fid": "int", "pid": "long", "rfid": "long", "programid": "int", "jd": "double",
    **_fields("float?", f"sciinpseeing scibckgnd scisigpix {_PHOTOMETRY} exptime adpctdif1 adpctdif2"),
    **_fields("float?", f"diffmaglim forcediffimflux forcediffimfluxunc {_NEAREST}"),
    "procstatus": "string?", "ranr": "double", "decnr": "double",
}  # fmt: skip
_CUTOUT = {"fileName": "string", "stampData": "bytes"}


def _record(name: str, fields: Row) -> Row:
    def kind(given: Any) -> Any:
        return [given[:-1], "null"] if isinstance(given, str) and given.endswith("?") else given

    listed = [{"name": each, "type": kind(given)} for each, given in fields.items()]
    return {"type": "record", "name": name, "namespace": "ztf.alert", "fields": listed}


def ztf_schema(version: str) -> Row:
    """The parsed schema of the alerts of a version, 3.3 or 4.02; the latter adds forced photometry."""
    fastavro = pytest.importorskip("fastavro")
    cutout: list[Any] = [_record("cutout", _CUTOUT), "null"]
    history = [{"type": "array", "items": _record("prv_candidate", _PREVIOUS)}, "null"]
    forced = [{"type": "array", "items": _record("fp_hist", _FORCED)}, "null"]
    fields: Row = {
        "schemavsn": "string", "publisher": "string", "objectId": "string", "candid": "long",
        "candidate": _record("candidate", _CANDIDATE), "prv_candidates": history,
        **({"fp_hists": forced} if version == "4.02" else {}),
        "cutoutScience": cutout, "cutoutTemplate": ["ztf.alert.cutout", "null"],
        "cutoutDifference": ["ztf.alert.cutout", "null"],
    }  # fmt: skip
    parsed: Row = fastavro.parse_schema(_record("alert", fields))
    return parsed

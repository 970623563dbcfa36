"""The key-value pairs of the sources' footers that an output keeps: those on which all agree, and three that mean more.

Spark says by which calendar a file's old dates are read (`_calendars`); dates of unlike calendars are unlike columns.
`geo` (GeoParquet) says which bytes are geometries and in which coordinates; what it says of the rows (bounds, kinds of
geometries) is joined, and all the rest must be alike, or the files are of different classes (`texts_in`). `pandas` says
which columns were an index or categories; what differs from file to file (a range as index) is what rows get anyway.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from compaction.blocks.format.int96 import SPARK_VERSION
from compaction.blocks.format.logical import TIMES_IN_DAYS, LeafMeaning, escaped
from compaction.blocks.format.metadata import PREFIX

_OLD_DATES: Final = b"org.apache.spark.legacyDateTime"
_OLD_INT96: Final = b"org.apache.spark.legacyINT96"
_ZONE: Final = b"org.apache.spark.timeZone"
_VERSION: Final = re.compile(rb"([0-9]{1,4})\.([0-9]{1,4})")
_OURS: Final = PREFIX.encode()
_GEO: Final = b"geo"
_PANDAS: Final = b"pandas"
_OF_ROWS: Final = ("bbox", "geometry_types")
_DEFAULT_CRS: Final = "OGC:CRS84"

Pairs = Mapping[bytes, bytes]


def agreed(found: Sequence[Pairs]) -> dict[bytes, bytes]:
    """Return the pairs on which all files agree, without what a block says of itself: an output is another block than
    any of its sources. The lowest version of Spark stays, if Spark wrote all of them.
    """
    if not found:
        return {}
    kept = {
        key: value
        for key, value in found[0].items()
        if not key.startswith(_OURS) and all(item.get(key) == value for item in found)
    }
    versions = [item[SPARK_VERSION] for item in found if SPARK_VERSION in item]
    if len(versions) == len(found):
        kept[SPARK_VERSION] = min(versions)
    for key, join in ((_GEO, _joined_geo), (_PANDAS, _joined_pandas)):
        objects = [_object(item[key]) for item in found if key in item]
        if objects and all(objects) and key not in kept:
            kept[key] = json.dumps(join(objects)).encode()
    return kept


def lost_where_different(found: Pairs) -> dict[bytes, bytes]:
    """Return the pairs of a file that a merge drops where its sources differ on them: they are no part of `agreed` in
    any form.
    """
    joined = (SPARK_VERSION, _GEO, _PANDAS, b"ARROW:schema")
    return {key: value for key, value in found.items() if key not in joined and not key.startswith(_OURS)}


def texts_in(meanings: Mapping[str, LeafMeaning], pairs: Pairs) -> dict[str, str]:
    """Return the meanings of a file's leaves beyond their Arrow types, by path: by their nodes, and by what GeoParquet
    says of its columns and not of their rows.
    """
    geo = _object(pairs.get(_GEO, b""))
    around = {key: value for key, value in geo.items() if key != "columns"}
    texts, calendars = {}, _calendars(pairs)
    for path, item in meanings.items():
        said = next((said for kind, said in calendars.items() if item.meaning.startswith(kind)), "")
        texts[path] = f"{item.text} {said}".strip()
    for name, column in _columns(geo).items():
        path, rest = escaped(name), json.dumps([around, _essential(column)], sort_keys=True).encode()
        said = f"geo {_crs(column)} {hashlib.sha256(rest).hexdigest()[:8]}"
        texts[path] = f"{texts.get(path, '')} {said}".strip()
    return texts


def _calendars(pairs: Pairs) -> dict[str, str]:
    """By kind of time, in words: what Spark has written by the calendar of its versions before 3, in which dates before
    1582, and times before 1900, are other ones. Its keys say so; all other files have the calendar of today.

    Source: Spark's DataSourceUtils (datetimeRebaseSpec, int96RebaseSpec).
    """
    if (found := _VERSION.match(pairs.get(SPARK_VERSION, b""))) is None:
        return {}
    version, zone = (int(found[1]), int(found[2])), pairs.get(_ZONE, b"").decode(errors="replace")
    where = f" of Spark before 3{f', {zone}' if zone else ''}"
    calendars: dict[str, str] = {}
    if version < (3, 0) or _OLD_DATES in pairs:
        calendars |= dict.fromkeys(("DATE", "TIMESTAMP"), f"dates{where}")
    if version < (3, 1) or _OLD_INT96 in pairs:
        calendars[TIMES_IN_DAYS] = f"INT96{where}"
    return calendars


def _object(value: bytes) -> dict[str, Any]:
    """A JSON object; empty for anything else, which is kept like any other key."""
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _columns(geo: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    columns = geo.get("columns")
    found = columns if isinstance(columns, dict) else {}
    return {name: column for name, column in found.items() if isinstance(column, dict)}


def _essential(column: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in column.items() if key not in _OF_ROWS}


def _crs(column: Mapping[str, Any]) -> str:
    crs = column.get("crs", _DEFAULT_CRS)
    name = crs.get("id", crs.get("name")) if isinstance(crs, dict) else crs
    return f"{name.get('authority')}:{name.get('code')}" if isinstance(name, dict) else str(name)


def _joined_geo(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of files that agree on all but their rows; older ones may lack a column."""
    every = [_columns(geo) for geo in found]
    joined = {}
    for name in dict.fromkeys(name for columns in every for name in columns):
        same = [columns[name] for columns in every if name in columns]
        column = _essential(same[0])
        kinds = [item.get("geometry_types") for item in same]
        listed = [kind for kind in kinds if isinstance(kind, list) and kind]  # an empty one says that any may be there
        known = len(listed) == len(kinds)
        column["geometry_types"] = sorted({str(kind) for item in listed for kind in item}) if known else []
        if box := _joined_box([item.get("bbox") for item in same]):
            column["bbox"] = box
        joined[name] = column
    return {**found[0], "columns": joined}


def _joined_box(boxes: Sequence[Any]) -> list[float] | None:
    """None where one is unknown, or goes across the antimeridian: such boxes have no smallest one around them."""
    if not all(isinstance(box, list) and len(box) in (4, 6) and len(box) == len(boxes[0]) for box in boxes):
        return None
    half = len(boxes[0]) // 2
    if not all(isinstance(item, int | float) for box in boxes for item in box) or any(
        box[0] > box[half] for box in boxes
    ):
        return None
    sides = zip(*boxes, strict=True)
    return [min(side) if place < half else max(side) for place, side in enumerate(sides)]


def _joined_pandas(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Columns as the first file that has them says; an index that is a range becomes the one that all rows have."""
    joined = dict(found[0])
    indexes = [item.get("index_columns") for item in found]
    if any(index != indexes[0] for index in indexes):
        joined["index_columns"] = []
    columns: dict[str, Any] = {}
    for item in found:
        said = item.get("columns")
        for column in said if isinstance(said, list) else []:
            if isinstance(column, dict):
                columns.setdefault(str(column.get("field_name", column.get("name"))), column)
    return {**joined, "columns": list(columns.values())}

"""Defects of the formats of staging areas."""

from __future__ import annotations

from typing import Final

from mutation.defect import Defect

_FORMAT: Final = "design/staging.md"
_TESTS: Final = "stores/staging/format"

FORMAT_DEFECTS: Final = (
    Defect(
        name="format: ranges break where the hash has another remainder",
        promise=f"{_FORMAT}#where-ranges-end",
        file="staging/format/ranges.py",
        old="hashes % np.uint64(raggedness) == 0]",
        new="hashes % np.uint64(raggedness) == 1]",
        killers=(f"{_TESTS}/test_ranges.py",),
    ),
    Defect(
        name="format: a range ends below its least size",
        promise=f"{_FORMAT}#where-ranges-end",
        file="staging/format/ranges.py",
        old="            if size >= rule.min_bytes and (size >= rule.max_bytes or hashed):",
        new="            if size >= rule.max_bytes or hashed:",
        killers=(f"{_TESTS}/test_ranges.py",),
    ),
    Defect(
        name="format: an index key of equal length is not shortened",
        promise=f"{_FORMAT}#index",
        file="staging/format/table_parts.py",
        old="if len(short) <= len(last) and short > last",
        new="if len(short) < len(last) and short > last",
        killers=(f"{_TESTS}/test_table_writer.py",),
    ),
    Defect(
        name="format: index blocks are judged by the true size of a handle",
        promise=f"{_FORMAT}#index",
        file="staging/format/table_parts.py",
        old="_ASSUMED_HANDLE: Final = 20",
        new="_ASSUMED_HANDLE: Final = 4",
        killers=(f"{_TESTS}/test_table_writer.py",),
    ),
    Defect(
        name="format: checksums are not masked",
        promise=f"{_FORMAT}#blocks",
        file="staging/format/table_parts.py",
        old="    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF",
        new="    return crc",
        killers=(f"{_TESTS}/test_table_writer.py",),
    ),
    Defect(
        name="format: a wrong checksum is not noticed",
        promise=f"{_FORMAT}#blocks",
        file="staging/format/table_parts.py",
        old="    wrong = expected != found\n",
        new="    wrong = expected != expected\n",
        killers=(f"{_TESTS}/test_table_reader.py",),
    ),
    Defect(
        name="format: a block stays compressed that saves less than an eighth",
        promise=f"{_FORMAT}#compression",
        file="staging/format/table_parts.py",
        old="        if len(packed) < size - size // 8:",
        new="        if len(packed) < size:",
        killers=(f"{_TESTS}/test_table_writer.py",),
    ),
    Defect(
        name="format: the id of a table leaves its kind out",
        promise=f"{_FORMAT}#identities",
        file="staging/format/identity.py",
        old="        return self._identity.mapping(user).digest().hex()",
        new="        return self._identity.mapping({}).digest().hex()",
        killers=(f"{_TESTS}/test_identity.py", f"{_TESTS}/test_ranges.py"),
    ),
    Defect(
        name="format: the identity of an entry hashes an empty content type",
        promise=f"{_FORMAT}#identities",
        file="staging/format/identity.py",
        old="    if entry.content_type:\n        identity.string(entry.content_type)\n",
        new="    identity.string(entry.content_type)\n",
        killers=(f"{_TESTS}/test_identity.py", f"{_TESTS}/test_lakefs_fixtures.py"),
    ),
    Defect(
        name="format: a message loses the fields that are not known",
        promise=f"{_FORMAT}#messages",
        file="staging/format/messages.py",
        old='        return b"".join(parts) + self.unknown',
        new='        return b"".join(parts)',
        killers=(f"{_TESTS}/test_messages.py",),
    ),
    Defect(
        name="format: ranges of a metarange overlap",
        promise=f"{_FORMAT}#ranges-and-metaranges",
        file="staging/format/ranges.py",
        old="        if other.min_key <= item.max_key:",
        new="        if other.min_key < item.min_key:",
        killers=(f"{_TESTS}/test_ranges.py",),
    ),
)

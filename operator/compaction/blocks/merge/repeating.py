"""Which columns are coded: those whose values repeat so often within a row group that a dictionary of all of them pays.

The footer says which chunks have a dictionary at all; the dictionaries of a few row groups are read to see whether
they are small (`dictionaries`). A wrong answer costs little: codes are given up when there are too many
(`columns.Memo`), and plain columns are merged as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from compaction.blocks.merge.columns import is_codable
from compaction.blocks.merge.dictionaries import ROWS_PER_VALUE, not_repeating
from compaction.blocks.merge.footers import OpenedFooter, reading
from compaction.blocks.merge.schema import without_dictionary

_FEWEST_VALUES: Final = 1024
_LOOKS: Final = 3


def repeating(schema: pa.Schema, footers: Sequence[OpenedFooter]) -> list[str]:
    """Names of the columns that are coded. Raises UnreadableBlockError."""
    having = [footer for footer in footers if footer.groups]
    names = [field.name for field in schema if is_codable(field.type) and _in_dictionaries(field.name, having)]
    for footer in having[:: max(1, -(-len(having) // _LOOKS))]:
        names = _repeating_in(footer, names)
    return names


def most_values(footers: Sequence[OpenedFooter]) -> int:
    """How many values the dictionary of a coded column may have: to look up those of a row group in it must cost less
    than the row group's rows do without it.
    """
    groups = sum(len(footer.groups) for footer in footers)
    rows = sum(footer.rows for footer in footers)
    return max(_FEWEST_VALUES, rows // max(1, groups) // ROWS_PER_VALUE)


def _in_dictionaries(column: str, footers: Sequence[OpenedFooter]) -> bool:
    """Whether every chunk of the column has a dictionary, and there is one."""
    chunks = [chunk for footer in footers for chunk in footer.chunks(column)]
    return bool(chunks) and all(chunk.has_dictionary_page for chunk in chunks)


def _repeating_in(footer: OpenedFooter, names: Sequence[str]) -> list[str]:
    """Those whose dictionary is small in the footer's first row group, or that it does not have."""
    types = {field.name: without_dictionary(field.type) for field in footer.schema}
    present = [name for name in names if name in types and is_codable(types[name])]
    if not present:
        return list(names)
    with reading(footer.input.name), footer.opened(present) as file:
        many = not_repeating(file, footer.groups[0], present)
    return [name for name in names if name not in many]

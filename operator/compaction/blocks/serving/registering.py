"""Registration as the endpoint offers it: all blocks of a request or none, and a word about each of them.

Repeating is harmless, so a writer that got no answer sends the same request again. One that dies between upload and
registration leaves an unregistered object: the sweeper collects it as an orphan.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from compaction.api.text.safe import cut, printable
from compaction.blocks.errors import (
    BlockConflictError,
    CorruptBlockError,
    ForeignFileError,
    InvalidBlockError,
    InvalidTenantError,
    UnexpectedBlockError,
    UnsuitableBlockError,
)
from compaction.blocks.model import Block
from compaction.blocks.owners import OwnerSign
from compaction.blocks.paths import escape_tenant, parse_block_path
from compaction.blocks.serving.messages import BlockResult, BlockToRegister, Problem, RegistrationOutcome
from compaction.blocks.store import BlockStore
from compaction.errors import CompactionError
from compaction.serving.access import Principal
from compaction.storage.errors import ObjectChangedError, ObjectMissingError, ObjectPathError, ObjectTruncatedError
from compaction.unexpected import defect, lack_of

_PROBLEMS: Final[tuple[tuple[type[CompactionError], Problem], ...]] = (
    (ObjectMissingError, Problem.OBJECT_MISSING),
    (ObjectPathError, Problem.INVALID),
    (ObjectChangedError, Problem.CORRUPT),
    (ObjectTruncatedError, Problem.CORRUPT),
    (CorruptBlockError, Problem.CORRUPT),
    (UnsuitableBlockError, Problem.UNSUITABLE),
    (InvalidTenantError, Problem.INVALID),
    (BlockConflictError, Problem.CONFLICT),
    (InvalidBlockError, Problem.INVALID),
)
"""What is wrong with one block; every other error is about the store or the index, and may pass."""
REFUSALS: Final = tuple(kind for kind, _ in _PROBLEMS)
_LONGEST_MESSAGE: Final = 1000


@dataclass(frozen=True, slots=True)
class Registration:
    """The answer: `status` of HTTP, and the results in the order of the request."""

    status: HTTPStatus
    results: tuple[BlockResult, ...]


def register(
    store: BlockStore, wanted: Sequence[BlockToRegister], principal: Principal, *, pool: Executor
) -> Registration:
    """Read all objects, some at a time in `pool`, and register the blocks in one transaction.

    Raises NotAllowedError before anything is read; ObjectError and DatabaseError when store or index fail.
    """
    for one in wanted:
        principal.check(one.tenant)
    owned = store.owners.of(one.path for one in wanted)
    looked = list(pool.map(lambda one: _look(store, one, principal, owned.get(one.path)), wanted))
    blocks = [one for one in looked if isinstance(one, Block)]
    if len(blocks) < len(wanted):
        return _refused(wanted, [one if isinstance(one, BlockResult) else None for one in looked])
    try:
        new = set(store.register_blocks(blocks).new)
    except InvalidBlockError as error:
        problems = [
            _problem(one, error) if block.id == error.block else None for one, block in zip(wanted, blocks, strict=True)
        ]
        return _refused(wanted, problems)
    return Registration(HTTPStatus.OK, tuple(_registered(block, new) for block in blocks))


def _look(store: BlockStore, one: BlockToRegister, principal: Principal, sign: OwnerSign | None) -> Block | BlockResult:
    try:
        if sign is not None:
            raise ForeignFileError(cut(one.path, 200), f"it belongs to {sign}")
        escape_tenant(one.tenant)  # or what the block is merged into could not be written
        if principal.allowed is not None and parse_block_path(one.path) is None:
            # Only such a path says whose object it is; any other may be another tenant's.
            raise ObjectPathError(
                cut(one.path, 200), f"{principal.name} registers <tenant>/<shard>/<ULID>.parquet only"
            )
        return store.describe(
            one.path,
            tenant=one.tenant,
            shard=one.shard,
            level=one.level,
            time_column=one.time_column,
            given_up=one.drop_path_columns,
        )
    except REFUSALS as error:
        return _problem(one, error)
    except CompactionError:
        raise  # of the store or the index: it may pass, and the writer tries again
    except Exception as error:
        if lack := lack_of(error, one.path):
            raise lack from error
        return _problem(one, UnexpectedBlockError(one.path, defect(error, one.path)))


def _problem(one: BlockToRegister, error: CompactionError) -> BlockResult:
    code = next(problem for kind, problem in _PROBLEMS if isinstance(error, kind))
    message = printable(cut(str(error), _LONGEST_MESSAGE))
    return BlockResult(path=one.path, outcome=RegistrationOutcome.REFUSED, code=code, message=message)


def _refused(wanted: Sequence[BlockToRegister], problems: Sequence[BlockResult | None]) -> Registration:
    results = tuple(
        problem or BlockResult(path=one.path, outcome=RegistrationOutcome.NOT_REGISTERED)
        for one, problem in zip(wanted, problems, strict=True)
    )
    conflict = all(result.code in {None, Problem.CONFLICT} for result in results)
    return Registration(HTTPStatus.CONFLICT if conflict else HTTPStatus.UNPROCESSABLE_ENTITY, results)


def _registered(block: Block, new: set[str]) -> BlockResult:
    outcome = RegistrationOutcome.REGISTERED if block.id in new else RegistrationOutcome.KNOWN
    return BlockResult(path=block.path, outcome=outcome, id=block.id)

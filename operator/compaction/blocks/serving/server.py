"""The endpoint of blocks: registrations and listings, with their OpenAPI document, refusals and metrics."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from http import HTTPStatus
from typing import Final

import structlog
from prometheus_client import CollectorRegistry, Counter

from compaction.api.text.printing import cut, printable
from compaction.blocks.errors import (
    BlockConflictError,
    BlockStoreError,
    CorruptBlockError,
    ForeignFileError,
    InvalidBlockError,
    InvalidTenantError,
    SnapshotExpiredError,
    UnexpectedBlockError,
    UnsuitableBlockError,
)
from compaction.blocks.index.live_blocks import BlockFilter, page
from compaction.blocks.model import Block, escape_tenant, parse_block_path
from compaction.blocks.owners import OwnerSign
from compaction.blocks.serving.messages import (
    BlockResult,
    BlockToRegister,
    ListingAnswer,
    ListingQuery,
    LiveBlock,
    Problem,
    ProblemAnswer,
    RegisterAnswer,
    RegisterRequest,
    RegistrationOutcome,
)
from compaction.blocks.store import BlockStore
from compaction.errors import CompactionError
from compaction.serving.access import Gate, Principal
from compaction.serving.errors import NotAllowedError, RequestRefusedError
from compaction.serving.openapi import Api, Call, EndpointOperation
from compaction.serving.refusals import Refusals, bad_request
from compaction.serving.service import HttpService, RequestLimits, RequestMetrics
from compaction.storage.errors import ObjectChangedError, ObjectMissingError, ObjectPathError, ObjectTruncatedError
from compaction.unexpected import defect, lack_of

# Metrics of the endpoint of blocks. Labels are of small, fixed sets: no tenant, no principal, no path.


class IngestMetrics(RequestMetrics):
    """Of one server, in a registry of its own unless one is given."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        super().__init__("compaction_ingest", registry)
        self.blocks = Counter(
            "compaction_ingest_blocks",
            "Blocks of registrations, by what became of them and why",
            ["outcome", "reason"],
            registry=self.registry,
        )

    def count(self, results: tuple[BlockResult, ...]) -> None:
        """The blocks of one request."""
        for result in results:
            self.blocks.labels(result.outcome.value, result.code.value if result.code else "").inc()


# The refusals of the endpoint of blocks.


def _answer(code: StrEnum, message: str, *, blocks: tuple[BlockResult, ...] | None = None) -> ProblemAnswer:
    return ProblemAnswer(code=Problem(code.value), message=message, blocks=blocks)


REFUSALS: Final = Refusals(
    _answer,
    BlockStoreError,
    {SnapshotExpiredError: (HTTPStatus.GONE, Problem.SNAPSHOT_EXPIRED)},
    "the store, its index or the API server did not answer: send the same request again",
)


# Registration as the endpoint offers it: all blocks of a request or none, and a word about each of them.
#
# Repeating is harmless, so a writer that got no answer sends the same request again. One that dies between upload and
# registration leaves an unregistered object: the sweeper collects it as an orphan.

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
REGISTRATION_REFUSALS: Final = tuple(kind for kind, _ in _PROBLEMS)
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
    for item in wanted:
        principal.check(item.tenant)
    owned = store.owners.of(item.path for item in wanted)
    looked = list(pool.map(lambda item: _look(store, item, principal, owned.get(item.path)), wanted))
    blocks = [item for item in looked if isinstance(item, Block)]
    if len(blocks) < len(wanted):
        return _refused(wanted, [item if isinstance(item, BlockResult) else None for item in looked])
    try:
        new = set(store.register_blocks(blocks).new)
    except InvalidBlockError as error:
        # It is one transaction, so one block keeps all out: only that one gets a problem.
        problems = [
            _problem(item, error) if block.id == error.block else None
            for item, block in zip(wanted, blocks, strict=True)
        ]
        return _refused(wanted, problems)
    return Registration(HTTPStatus.OK, tuple(_registered(block, new) for block in blocks))


def _look(
    store: BlockStore, item: BlockToRegister, principal: Principal, sign: OwnerSign | None
) -> Block | BlockResult:
    try:
        if sign is not None:
            raise ForeignFileError(cut(item.path, 200), f"it belongs to {sign}")
        escape_tenant(item.tenant)  # or what the block is merged into could not be written
        if principal.allowed is not None and parse_block_path(item.path) is None:
            # Only such a path says whose object it is; any other may be another tenant's.
            raise ObjectPathError(
                cut(item.path, 200), f"{principal.name} registers <tenant>/<shard>/<ULID>.parquet only"
            )
        return store.describe(
            item.path,
            tenant=item.tenant,
            shard=item.shard,
            level=item.level,
            time_column=item.time_column,
            given_up=item.drop_path_columns,
        )
    except REGISTRATION_REFUSALS as error:
        return _problem(item, error)
    except CompactionError:
        raise  # of the store or the index: it may pass, and the writer tries again
    except Exception as error:
        if lack := lack_of(error, item.path):
            raise lack from error
        return _problem(item, UnexpectedBlockError(item.path, defect(error, item.path)))


def _problem(item: BlockToRegister, error: CompactionError) -> BlockResult:
    code = next(problem for kind, problem in _PROBLEMS if isinstance(error, kind))
    message = printable(cut(str(error), _LONGEST_MESSAGE))
    return BlockResult(path=item.path, outcome=RegistrationOutcome.REFUSED, code=code, message=message)


def _refused(wanted: Sequence[BlockToRegister], problems: Sequence[BlockResult | None]) -> Registration:
    results = tuple(
        problem or BlockResult(path=item.path, outcome=RegistrationOutcome.NOT_REGISTERED)
        for item, problem in zip(wanted, problems, strict=True)
    )
    conflict = all(result.code in {None, Problem.CONFLICT} for result in results)
    return Registration(HTTPStatus.CONFLICT if conflict else HTTPStatus.UNPROCESSABLE_ENTITY, results)


def _registered(block: Block, new: set[str]) -> BlockResult:
    outcome = RegistrationOutcome.REGISTERED if block.id in new else RegistrationOutcome.KNOWN
    return BlockResult(path=block.path, outcome=outcome, id=block.id)


# The endpoint of blocks: registrations and listings (docs/block-ingest.md).

log = structlog.get_logger(__name__)


class IngestServer(HttpService):
    """Serves one store; for one event loop. `close` when the application has ended."""

    def __init__(
        self,
        store: BlockStore,
        gate: Gate,
        *,
        limits: RequestLimits | None = None,
        metrics: IngestMetrics | None = None,
    ) -> None:
        limits = limits or RequestLimits()
        self._store, self.metrics = store, metrics or IngestMetrics()
        super().__init__(gate, API, REFUSALS, limits=limits, metrics=self.metrics)
        self._footers = ThreadPoolExecutor(limits.threads, thread_name_prefix="footers")

    def close(self) -> None:
        super().close()
        self._footers.shutdown()

    async def register(self, call: Call) -> RegisterAnswer:
        """All blocks of a request, or none."""
        wanted = call.body.blocks
        done = await self.in_thread(partial(register, self._store, wanted, call.principal, pool=self._footers))
        self.metrics.count(done.results)
        outcomes = [result.outcome for result in done.results]
        log.info(
            "blocks registered" if done.status == HTTPStatus.OK else "blocks refused",
            principal=call.principal.name,
            new=outcomes.count(RegistrationOutcome.REGISTERED),
            known=outcomes.count(RegistrationOutcome.KNOWN),
            refused=outcomes.count(RegistrationOutcome.REFUSED),
        )
        if done.status == HTTPStatus.OK:
            return RegisterAnswer(blocks=done.results)
        count = outcomes.count(RegistrationOutcome.REFUSED)
        message = f"{count} of {len(outcomes)} blocks were refused, and none was registered"
        raise RequestRefusedError(done.status, Problem.BLOCKS_REFUSED, message, blocks=done.results)

    async def list(self, call: Call) -> ListingAnswer:
        """A page of live blocks, of the tenants that the caller may see."""
        query, principal = call.query, call.principal
        if query.tenant is not None:
            principal.check(query.tenant)
        elif principal.allowed is not None:
            raise NotAllowedError(f"{principal.name} may not list all tenants: name one of its own")
        if query.after and query.version is None:
            raise bad_request("`after` goes with the `version` of the page before")
        which = BlockFilter(query.tenant, query.shard, query.level, query.start, query.end)
        found = await self.in_thread(
            partial(page, self._store.index, which, version=query.version, after=query.after, limit=query.limit)
        )
        return ListingAnswer(version=found.version, blocks=tuple(map(LiveBlock.of, found.blocks)), more=found.more)


API: Final = Api(
    "Block ingest",
    "Writers register the Parquet blocks that they have uploaded; readers list the live ones.",
    (
        EndpointOperation(
            "registerBlocks",
            "POST",
            "/v1/blocks",
            "Register blocks that were uploaded: all of them, or none.",
            RegisterAnswer,
            IngestServer.register,
            "From a 200 on readers see the blocks, and they wait for compaction. Repeating is harmless: a block that "
            "is registered already is Known. 409: an id or path is that of another content. 422: an object is missing, "
            "damaged or not the block it should be. After 503, or no answer, send the same request again.",
            problems=(HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY),
            body=RegisterRequest,
        ),
        EndpointOperation(
            "listBlocks",
            "GET",
            "/v1/blocks",
            "List live blocks, all of one instant.",
            ListingAnswer,
            IngestServer.list,
            "By id, in pages. For the next one give the `version` of the first and the last id as `after`: whatever "
            "happens in between, all pages show the same instant. The objects stay readable for the store's grace "
            "after it. 410: the instant is too long ago.",
            problems=(HTTPStatus.GONE,),
            query=ListingQuery,
        ),
    ),
    ProblemAnswer,
)
"""The table of the endpoint: its routes and its document are made from these rows."""

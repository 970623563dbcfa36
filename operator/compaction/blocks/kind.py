"""Block stores as the core knows them: targets, measures, reasons, and jobs in their words."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from compaction.api.job.job import CompactionJobSpec, JobParameters, JobReceipt, JobSources
from compaction.api.members import member_of
from compaction.api.policy.block_store import BLOCK_REWRITE, BLOCK_STORE, BlockParameters, BlockSources, BlockStoreSpec
from compaction.api.policy.store import StoreSpec
from compaction.api.text.printing import format_bytes, plural
from compaction.blocks import reasons
from compaction.blocks.doors import BLOCK_DOORS
from compaction.blocks.model import format_merge, work_of
from compaction.blocks.reasons import FATES
from compaction.core.kind import Kind, Measure, Nouns, StoreSecrets, Words, Work, debt_of
from compaction.core.planning.candidates import Candidate, Parts
from compaction.core.planning.debt import ScanResult, UnofferedDebt
from compaction.core.planning.overlap import plain_path
from compaction.core.planning.planner import PlannedJob

if TYPE_CHECKING:
    from compaction.api.policy.policy import CompactionPolicyStatus


# Measures of a block store besides its debt. Its adapter reads them too.

LIVE: Final = "liveBlocks"
WINDOWS: Final = "windows"
READS: Final = "readAmplification"
READS_AFTER: Final = "readAmplificationAfter"


def measures_of(
    *, live: int, windows: int, candidates: Iterable[Candidate], beyond: Iterable[UnofferedDebt] = ()
) -> Mapping[str, float]:
    """The measures of a scan.

    Args:
        live: blocks that a reader of everything would open.
        windows: combinations of tenant, shard and window of time that have any: a query about one of them opens
            `live / windows` blocks on average.
        candidates, beyond: the debt. Of each batch one block is left.
    """
    fewer = sum(candidate.debt_sources - 1 for candidate in candidates if not candidate.is_empty)
    fewer += sum(item.sources - item.targets for item in beyond)
    return {
        LIVE: live,
        WINDOWS: windows,
        READS: read_amplification(live, windows),
        READS_AFTER: read_amplification(live - fewer, windows),
    }


def read_amplification(blocks: int, windows: int) -> float:
    """Blocks that a query about one tenant, shard and window opens on average; at least one, 0 in an empty store."""
    return round(max(1.0, blocks / windows), 2) if windows else 0.0


# Block stores as the core knows them.

_OF_ROWS: Final = re.compile(r"([0-9]{1,19}):([0-9a-f]{16})", re.ASCII)
_ESCAPED: Final = re.compile(rb"%([0-9a-fA-F]{2})")
_DIGESTS: Final = 1 << 64


class BlockStoreKind(Kind):
    """See `Kind`. A target is a batch of blocks (`work`); blocks never change, so it has no base version."""

    member = BLOCK_STORE
    nouns = Nouns(
        source="block",
        target="batch",
        targets="batches",
        gain="to merge",
        compacted="merged",
        deleted="object",
        ends_quarantine="release or drop the block",
    )
    doors = BLOCK_DOORS
    words = Words(jobs=reasons.JOB_WORDS, left_alone=reasons.LEFT_ALONE_WORDS)
    measures = (
        Measure(LIVE, "blocks", "Blocks that a reader of the whole store opens", "Live blocks"),
        Measure(
            WINDOWS, "block_windows", "Combinations of tenant, shard and window of time that have blocks", "Windows"
        ),
        Measure(
            READS,
            "read_amplification",
            "Blocks that a query about one tenant, shard and window opens, on average",
            "Blocks that a query opens",
        ),
        Measure(
            READS_AFTER,
            "read_amplification_after",
            "The same when the debt is worked off",
            "Blocks that a query opens after compaction",
        ),
    )
    fates = FATES
    immutable_sources = True
    keeps_quarantine = True
    has_tenants = True

    # -- planning ------------------------------------------------------------------------------------------------------

    def due(self, store: StoreSpec) -> Callable[[Candidate], bool]:
        """See `Kind`. Bytes AND blocks that would be gone; a single block that is rewritten, or dropped, counts."""
        thresholds = member_of(store.block_store).thresholds
        least, fewest = int(thresholds.debt_bytes), thresholds.debt_blocks
        return lambda candidate: candidate.debt_bytes >= least and max(1, candidate.debt_sources - 1) >= fewest

    def parameters(self, store: StoreSpec) -> JobParameters:
        """See `Kind`."""
        blocks = member_of(store.block_store)
        keep_last_of = blocks.deduplicate.columns if blocks.deduplicate is not None else ()
        parameters = BlockParameters(
            memory_bytes=int(blocks.merge_memory), sort_key=blocks.sort_key, deduplicate_by=keep_last_of
        )
        return JobParameters(blocks=parameters)

    def work(self, job: PlannedJob, store: StoreSpec) -> Work:
        """See `Kind`."""
        (group,) = job.groups
        planned = work_of(job.target, job.level, group.sources)
        sources = BlockSources(
            store=member_of(store.block_store).reference,
            tenant=planned.tenant,
            shard=planned.shard,
            batch=job.target,
            blocks=planned.sources,
        )
        return Work(BLOCK_REWRITE, JobSources(blocks=sources), self.parameters(store))

    def parts(self, spec: CompactionJobSpec) -> Parts:
        """See `Kind`."""
        return Parts(groups=(member_of(spec.sources.blocks).blocks,), divisible=True)

    def tenant(self, spec: CompactionJobSpec, store: StoreSpec) -> str:
        """See `Kind`."""
        return member_of(spec.sources.blocks).tenant

    # -- which store ---------------------------------------------------------------------------------------------------

    def stranger(self, spec: CompactionJobSpec, store: StoreSpec, policy: str) -> str:
        """See `Kind`."""
        named = member_of(spec.sources.blocks).store
        if named == member_of(store.block_store).reference:
            return ""
        return f"{named.url}, with the Secrets that the job names, is not the store of policy {policy}"

    def gone(self, job: str, spec: CompactionJobSpec, scan: ScanResult) -> bool:
        """See `Kind`. Blocks are found by their ids, whatever a job made by hand calls their batch."""
        return job in scan.outdated

    def unclaimable(self, job: str, spec: CompactionJobSpec, scan: ScanResult) -> bool:
        """See `Kind`. Blocks of several tenants, shards or levels will never become a job's."""
        return job not in scan.outdated

    def places(self, store: StoreSpec, namespace: str) -> tuple[str, ...]:
        """See `Kind`."""
        blocks = member_of(store.block_store)
        index = f"index:{namespace}:{blocks.index.secret_name}:{blocks.index.key}"
        return f"blocks:{_place(blocks)}".rstrip("/"), index

    def overlap(self, spec: StoreSpec, other: StoreSpec, *, same_namespace: bool) -> bool:
        """See `Kind`: the same index, or one place inside the other. Secrets are of a namespace: in two of them the
        same URL with credentials may be of two servers, and what an index does not know the store's own identity keeps
        apart.
        """
        mine, theirs = member_of(spec.block_store), member_of(other.block_store)
        if same_namespace and mine.index == theirs.index:
            return True
        places = sorted(f"{_place(blocks).rstrip('/')}/" for blocks in (mine, theirs))
        if not places[1].startswith(places[0]):
            return False
        without = mine.credentials_secret_name is None and theirs.credentials_secret_name is None
        return same_namespace or without or mine.url.startswith("file://")

    def secrets(self, store: StoreSpec) -> StoreSecrets:
        """See `Kind`. The index is the driver's alone: who only copies objects cannot change what is known of them."""
        blocks = member_of(store.block_store)
        return StoreSecrets(driver=blocks.secret_names, tasks=blocks.object_secret_names)

    # -- words ---------------------------------------------------------------------------------------------------------

    def scanned(self, scan: ScanResult) -> str:
        """See `Kind`."""
        return plural(int(scan.measures.get(LIVE, 0)), "block")

    def proves_equal(self, receipt: JobReceipt) -> bool:
        """See `Kind`: the outputs hold what the sources held, less the duplicates that were left out."""
        if not receipt.fingerprint_duplicates:
            return super().proves_equal(receipt)
        before, after = _numbers(receipt.fingerprint_before), _numbers(receipt.fingerprint_after)
        dropped = _numbers(receipt.fingerprint_duplicates)
        if before is None or after is None or dropped is None:
            return False
        return before == (after[0] + dropped[0], (after[1] + dropped[1]) % _DIGESTS)

    def does(self, spec: CompactionJobSpec) -> str:
        """See `Kind`."""
        blocks, parameters = member_of(spec.sources.blocks), spec.block_parameters
        size = f", {format_bytes(spec.estimated_bytes)}," if spec.estimated_bytes else ""
        by = f", sorted by {', '.join(parameters.sort_key)}" if parameters.sort_key else ""
        same = ", ".join(parameters.deduplicate_by)
        kept = f"; of rows with the same {same} only the last is kept" if same else ""
        return (
            f"The job merges {plural(len(blocks.blocks), 'block')}{size} of tenant {blocks.tenant}, shard "
            f"{blocks.shard}, into one of level {spec.level + 1}{by}{kept}."
        )

    def did(self, receipt: JobReceipt) -> str:
        """See `Kind`."""
        return format_merge(len(receipt.sources), len(receipt.outputs))

    def became(self, receipt: JobReceipt) -> str:
        """See `Kind`."""
        before, after = format_bytes(receipt.bytes_before), format_bytes(receipt.bytes_after)
        dropped = f", {plural(receipt.duplicates, 'duplicate')} left out" if receipt.duplicates else ""
        blocks = f"{plural(len(receipt.sources), 'block')} became {len(receipt.outputs)}"
        return f"{blocks}, {before} became {after}, {receipt.records} rows{dropped}."

    def debt(self, status: CompactionPolicyStatus) -> str:
        """See `Kind`."""
        debt = debt_of(status)
        where = f"{plural(debt.sources, 'block')} in {plural(debt.targets, 'batch', 'batches')}"
        return f"{format_bytes(debt.bytes)} of {where} could be merged"

    def details(self, status: CompactionPolicyStatus) -> tuple[str, ...]:
        """See `Kind`."""
        debt = debt_of(status)
        return (
            f"A query about one tenant, shard and window of time opens {debt.measure(READS):g} blocks on average; "
            f"{debt.measure(READS_AFTER):g} when that is done.",
        )

    def rows(self, status: CompactionPolicyStatus) -> tuple[tuple[str, str], ...]:
        """See `Kind`."""
        if status.debt is None or not status.debt.measures:
            return ()
        debt = status.debt
        after = f", {debt.measure(READS_AFTER):g} when the debt is worked off" if debt.sources else ""
        query = f"a query opens {debt.measure(READS):g} on average{after}"
        rows = [("Blocks", f"{debt.measure(LIVE):g} live; {query}")]
        if debt.levels and debt.sources:
            rows.append(
                ("Levels", ", ".join(f"L{level.level}: {plural(level.sources, 'block')}" for level in debt.levels))
            )
        if debt.tenants:
            rows.append(
                ("Tenants", ", ".join(f"{tenant.tenant}: {plural(tenant.sources, 'block')}" for tenant in debt.tenants))
            )
        return tuple(rows)


def _place(blocks: BlockStoreSpec) -> str:
    """The URL as one text however it is written: escapes are what they stand for, a folder has one path."""
    plain = _ESCAPED.sub(lambda found: bytes([int(found[1], 16)]), blocks.url.encode())
    scheme, _, path = plain.decode(errors="replace").partition("://")
    return f"{scheme}://{plain_path(path) if scheme == 'file' else path}"


def _numbers(fingerprint: str) -> tuple[int, int] | None:
    """Rows and digest of a fingerprint of blocks, `<rows>:<16 hexadecimal digits>`; None for anything else."""
    found = _OF_ROWS.fullmatch(fingerprint)
    return None if found is None else (int(found[1]), int(found[2], 16))


BLOCKS: Final = BlockStoreKind()

"""The last screens of the demo of segment logs."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from compaction.api.text.formatting import format_bytes
from compaction.local.demo.segments.proof import LogProof
from compaction.local.demo.view import table_of


def proof_table(proofs: Sequence[LogProof]) -> Table:
    """The last screen: per log what was readable and what it cost, before and after."""
    table = table_of(("LOG", "LIVE CONTENT", "ENTRIES", "SEGMENTS", "BEFORE", "AFTER", "RECLAIMED", "RECEIPTS"))
    for proof in proofs:
        table.add_row(
            proof.name,
            Text("equal", style="green") if proof.same_content else Text("DIFFERENT", style="bold red"),
            str(proof.after.entries),
            f"{proof.before.segments} -> {proof.after.segments}",
            format_bytes(proof.before.disk_bytes),
            format_bytes(proof.after.disk_bytes),
            format_bytes(proof.reclaimed),
            str(len(proof.receipts)),
        )
    before, after = (
        sum(disk) for disk in zip(*((p.before.disk_bytes, p.after.disk_bytes) for p in proofs), strict=True)
    )
    table.add_section()
    table.add_row("all", "", "", "", format_bytes(before), format_bytes(after), format_bytes(before - after), "")
    return table


def receipts_table(proofs: Sequence[LogProof]) -> Table:
    """Each job's own proof: what it read, what it wrote, and that both hold the same entries."""
    table = table_of(
        ("RECEIPT", "LOG", "TOKEN", "GROUPS", "SOURCES", "ENTRIES", "BEFORE", "AFTER", "SHA-256 BEFORE = AFTER")
    )
    for proof in proofs:
        for job, receipt in proof.receipts.items():
            equal = receipt.fingerprint_before == receipt.fingerprint_after
            table.add_row(
                job,
                proof.name,
                str(receipt.token),
                f"{receipt.groups_committed} of {receipt.groups}",
                str(len(receipt.sources)),
                str(receipt.records),
                format_bytes(receipt.bytes_before),
                format_bytes(receipt.bytes_after),
                Text(receipt.fingerprint_after[:12] if equal else "DIFFERENT", style="green" if equal else "bold red"),
            )
    return table

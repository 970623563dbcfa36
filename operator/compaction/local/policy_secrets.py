"""Secrets without Kubernetes: documents in the policy's own file first, then a directory of mounted ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from compaction.stores.secrets import DirectorySecrets, GivenSecrets


@dataclass(frozen=True, slots=True)
class FileSecrets:
    """Implements `stores.secrets.Secrets`. `directory`: for names that no document has."""

    documents: GivenSecrets
    directory: DirectorySecrets | None = None

    def read(self, name: str) -> Mapping[str, str]:
        """See `Secrets`."""
        if self.directory is None or name in self.documents.values:
            return self.documents.read(name)
        return self.directory.read(name)

"""Staging areas in the resources: the member of `spec.store` (where the branches are, when one is compacted), and the
sources and parameters of their jobs.

Credentials are never here: the names of Secrets are. Where the objects are stands in the record of the repository.
"""

from __future__ import annotations

import re
from typing import Annotated, Final

from pydantic import Field, StringConstraints

from compaction.api.base import ApiModel, Checked, PrinterColumn, Rule, list_atomic, list_set
from compaction.api.members import JobMember, SourcesModel, StoreMember, StoreModel
from compaction.api.policy.values import LASTING, SOME_BYTES, CaBundle, SecretKey, SecretName
from compaction.api.text.quantities import Duration, Quantity

METARANGE_REWRITE: Final = "MetarangeRewrite"
MAX_TOKENS_PER_JOB: Final = 1000
"""Of a branch with more, the oldest are compacted first."""

_REPOSITORY: Final = "^[a-z0-9][a-z0-9-]{2,62}$"
REPOSITORY_NAME: Final = Rule(
    cel=f"self.matches('{_REPOSITORY}')",
    message="must be the name of a repository: 3 to 63 lower case letters, digits and hyphens, no hyphen first",
    holds=lambda name: re.fullmatch(_REPOSITORY, name) is not None,
)
_TABLE: Final = "^[A-Za-z0-9_.-]{1,60}$"
TABLE_NAME: Final = Rule(
    cel=f"self.matches('{_TABLE}')",
    message="must be the name of a table: up to 60 letters, digits, '_', '.' and '-'",
    holds=lambda name: re.fullmatch(_TABLE, name) is not None,
)
_BRANCHES: Final = "^[^/ ]+$"
BRANCH_PATTERN: Final = Rule(
    cel=f"self.matches('{_BRANCHES}')",
    message="must be a pattern of names of branches, such as main or etl-*: no '/', no space",
    holds=lambda pattern: re.fullmatch(_BRANCHES, pattern) is not None,
)
_ID: Final = "^[0-9a-f]{64}$"
COMMIT_ID: Final = Rule(
    cel=f"self.matches('{_ID}')",
    message="must be the id of a commit: 64 hexadecimal digits",
    holds=lambda commit: re.fullmatch(_ID, commit) is not None,
)
TREE_ID: Final = Rule(
    cel=f"size(self) == 0 || self.matches('{_ID}')",
    message="must be the id of a metarange, 64 hexadecimal digits, or empty",
    holds=lambda tree: tree == "" or re.fullmatch(_ID, tree) is not None,
)
BranchName = Annotated[str, StringConstraints(min_length=1, max_length=256)]
BranchPattern = Annotated[str, StringConstraints(min_length=1, max_length=256), Checked(BRANCH_PATTERN)]
TokenName = Annotated[str, StringConstraints(min_length=1, max_length=400)]
Amount = Annotated[int, Field(ge=1, le=10**12)]


class KeyValueReference(ApiModel):
    """Where the URL of the key-value store is kept."""

    secret_name: SecretName
    """Name of a Secret in the policy's namespace."""
    key: SecretKey = "url"
    """Key of the Secret whose value is the URL of the key-value store, such as
    postgresql://user:password@host/database."""


class StagingAreaReference(ApiModel):
    """Which repository: its name, and the key-value store that has it."""

    repository: Annotated[str, StringConstraints(max_length=63), Checked(REPOSITORY_NAME)]
    """Name of the repository."""
    kv: KeyValueReference
    """The key-value store that has the repository."""
    table: Annotated[str, StringConstraints(max_length=60), Checked(TABLE_NAME)] = "kv"
    """Name of the table of the key-value store."""
    credentials_secret_name: SecretName | None = None
    """Name of a Secret in the policy's namespace with the options of the object store, such as aws_access_key_id.
    Without it, the workers' own identity is used."""
    ca_bundle: CaBundle | None = None
    """Authorities whose certificates the object store and the key-value store have. Without it, those of the image are
    trusted. With it, the connection to PostgreSQL is encrypted and the server's name is checked, unless the URL says
    another sslmode."""

    @property
    def secret_names(self) -> tuple[str, ...]:
        """Names of the Secrets, and of the ConfigMap, that the repository is opened with, each once."""
        return tuple(dict.fromkeys((*self.object_secret_names, self.kv.secret_name)))

    @property
    def object_secret_names(self) -> tuple[str, ...]:
        """Of those, what the objects are read and written with: tasks have no other."""
        credentials = (self.credentials_secret_name,) if self.credentials_secret_name else ()
        return (*credentials, *((self.ca_bundle.source,) if self.ca_bundle is not None else ()))


class StagingThresholds(ApiModel):
    """How much debt makes a branch due: any threshold that is reached does."""

    tombstones: Amount | None = 1000
    """Number of tombstones in the tokens of a branch. Without it, tombstones alone make no branch due."""
    sealed_tokens: Amount | None = 10
    """Number of sealed tokens of a branch."""
    staged_writes: Amount | None = 1_000_000
    """Number of writes, tombstones among them, in the tokens of a branch."""
    staged_bytes: Annotated[Quantity, Checked(SOME_BYTES)] | None = None
    """Bytes of keys and values in the tokens of a branch, as a quantity such as 64Mi."""
    max_age: Annotated[Duration, Checked(LASTING)] | None = None
    """Time since the last compaction of a branch began, or since its commit, after which whatever is staged makes it
    due, such as 1d."""


class LakeFsMergeSpec(ApiModel):
    """The repository is one of a live, unmodified lakeFS on PostgreSQL: the sealed tokens of a branch are merged into
    one, and nothing else is changed."""

    dry_run: bool = True
    """Whether plans only report what would be merged. No job is created then."""
    least_tokens: Annotated[int, Field(ge=2, le=1_000_000)] = 10
    """Number of sealed tokens of a branch, below which they are not merged."""
    seal_staging: bool = False
    """Whether a staging token that has rows is sealed first, so that its rows are merged, too."""
    quiet: Annotated[Duration, Checked(LASTING)] = Duration("30s")
    """Time that a branch must not change before its tokens are read, longer than the longest request of a server."""
    idle: Annotated[Duration, Checked(LASTING)] = Duration("60s")
    """Time since the last change of a branch within which it is left alone."""
    grace: Annotated[Duration, Checked(LASTING)] = Duration("6h")
    """Time for which merged tokens stay, longer than the longest listing of a server and its garbage collection."""


class StagingAreaSpec(StagingAreaReference, StoreModel):
    """Branches of a repository with uncommitted changes in a key-value store over ranges in an object store."""

    include: Annotated[tuple[BranchPattern, ...], Field(min_length=1, max_length=64), list_atomic()] = ("*",)
    """Patterns of the names of branches to compact, with * for any characters."""
    exclude: Annotated[tuple[BranchPattern, ...], Field(max_length=64), list_atomic()] = ()
    """Patterns of the names of branches to leave alone. They win over include."""
    thresholds: StagingThresholds = Field(default_factory=StagingThresholds)
    """Debt that makes a branch due."""
    lakefs: LakeFsMergeSpec | None = None
    """Set for a repository of a live, unmodified lakeFS on PostgreSQL."""

    @property
    def reference(self) -> StagingAreaReference:
        """The part of it that a job receives."""
        return StagingAreaReference(
            repository=self.repository,
            kv=self.kv,
            table=self.table,
            credentials_secret_name=self.credentials_secret_name,
            ca_bundle=self.ca_bundle,
        )

    @property
    def location(self) -> str:
        """See `StoreModel`."""
        return f"repository {self.repository}"


class MetarangeSources(SourcesModel):
    """Tokens of one branch that become part of its base."""

    store: StagingAreaReference
    """The repository, as the policy has it: a job for another one is refused."""
    branch: BranchName
    """Name of the branch."""
    commit: Annotated[str, StringConstraints(max_length=64), Checked(COMMIT_ID)]
    """Id of the commit that the branch is on."""
    base: Annotated[str, StringConstraints(max_length=64), Checked(TREE_ID)] = ""
    """Id of the compacted base of the branch. Empty: it has none, and the tree of the commit is the base."""
    tokens: Annotated[tuple[TokenName, ...], Field(min_length=1, max_length=MAX_TOKENS_PER_JOB), list_set()]
    """Names of the tokens, the newest first. Those of the branch that are newer stay."""

    @property
    def target(self) -> str:
        """See `SourcesModel`: the repository and the branch."""
        return f"{self.store.repository}/{self.branch}"


class MetarangeParameters(ApiModel):
    """How the tokens of a branch are compacted."""

    lakefs: LakeFsMergeSpec | None = None
    """Set for a branch of a live lakeFS: its sealed tokens are merged into one."""


STAGING_AREA: Final = StoreMember(
    name="StagingArea",
    member="staging_area",
    model=StagingAreaSpec,
    help="Branches of a repository with uncommitted changes in a key-value store over ranges in an object store.",
    jobs=(
        JobMember(
            name=METARANGE_REWRITE,
            member="metarange",
            sources=MetarangeSources,
            parameters=MetarangeParameters,
            help="Tokens of one branch",
            needs="store, branch, commit and the names of tokens",
            column=PrinterColumn("Branch", ".spec.sources.metarange.branch", "Name of the branch", wide=True),
        ),
    ),
)

"""Programs of others as they are released, in images for the node of the tests: Kueue's manager and oauth2-proxy.

No registry of images is in reach of a test, so each is built once from its own Go module, whose hash is pinned, with
the versions that it pins itself, and kept beside the programs of the control plane. A next release is the version in
gomodules.

    PYTHONPATH=tests python -m node.releases      builds them
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from compaction.local.programs import gobuild
from support.pinned_modules import PinnedModule, kept, made_once
from tools.node.running import write_archive

_MODULES: Final = Path(__file__).with_name("gomodules")
_ARCHIVE: Final = "image.tar"


@dataclass(frozen=True, slots=True)
class ReleasedProgram:
    """`package` of a module, which becomes `program`, from these `parts` of it. The image has it at `path`, and nothing
    else; `files` of the module are kept beside the image.
    """

    module: PinnedModule
    package: str
    program: str
    parts: tuple[str, ...]
    image: str
    path: str
    files: tuple[str, ...] = ()

    @property
    def archive(self) -> Path:
        """The image, in the form of `docker save`."""
        return self.place() / _ARCHIVE

    def place(self) -> Path:
        """The directory that holds the image and the files, made if need be. Raises BinaryError."""
        ours = hashlib.sha256(repr((self.parts, self.files, self.image)).encode()).hexdigest()[:8]
        place = kept(f"{self.program}-{self.module.version}-{ours}")
        return made_once(place, self._make, what=f"building {self.program}", report=print)

    def _make(self, made: Path, cache: Path) -> None:
        module, wrapper = str(self.module), self.module.wrapper
        gobuild.build_inside(
            made, module, package=self.package, parts=self.parts, wrapper=wrapper, cache=cache, report=print
        )
        if self.files:
            gobuild.fetch(made, module, self.files, wrapper=wrapper, cache=cache)
        program = made / self.program
        files = {self.path: program.read_bytes()}
        write_archive(made / _ARCHIVE, self.image, files=files, links={}, command=[f"/{self.path}"])
        program.unlink()


KUEUE_DEFINITIONS: Final = tuple(
    f"kueue.x-k8s.io_{kind}.yaml"
    for kind in (
        "admissionchecks",
        "clusterqueues",
        "cohorts",
        "localqueues",
        "multikueueclusters",
        "multikueueconfigs",
        "provisioningrequestconfigs",
        "resourceflavors",
        "topologies",
        "workloadpriorityclasses",
        "workloads",
    )
)
KUEUE_WEBHOOKS, KUEUE_ROLE = "manifests.yaml", "role.yaml"
KUEUE: Final = ReleasedProgram(
    PinnedModule("sigs.k8s.io/kueue", _MODULES / "kueue"),
    package="cmd/kueue",
    program="kueue",
    parts=("apis", "client-go", "cmd/kueue", "internal", "pkg"),
    image="localhost/kueue:test",
    path="manager",
    files=(
        *(f"config/components/crd/bases/{name}" for name in KUEUE_DEFINITIONS),
        f"config/components/webhook/{KUEUE_WEBHOOKS}",
        f"config/components/rbac/{KUEUE_ROLE}",
    ),
)

_PROXY: Final = PinnedModule("github.com/oauth2-proxy/oauth2-proxy/v7", _MODULES / "oauth2-proxy")
OAUTH2_PROXY: Final = ReleasedProgram(
    _PROXY,
    package=".",
    program="oauth2-proxy",
    parts=("main.go", "oauthproxy.go", "validator.go", "pkg", "providers", "static"),
    # The name in the Deployment of the console: what it runs here is compiled from the release's own sources.
    image=f"quay.io/oauth2-proxy/oauth2-proxy:{_PROXY.version}",
    path="bin/oauth2-proxy",
)


if __name__ == "__main__":
    for released in (KUEUE, OAUTH2_PROXY):
        released.place()

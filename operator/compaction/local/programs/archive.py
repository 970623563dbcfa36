"""Download the published envtest archive: etcd, kube-apiserver and kubectl in one file, trusted by its pinned checksum
only.

Standard library only: this runs while the virtual environment is still being filled. Where the archive cannot be
reached it says so within seconds, because the next way (a build) takes minutes and should start at once.
"""

from __future__ import annotations

import hashlib
import shutil
import tarfile
import tempfile
import urllib.request
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from compaction.local.errors import BinaryError
from compaction.local.programs.versions import ENVTEST_SHA512, ENVTEST_URL, ENVTEST_VERSION

PROGRAMS = ("etcd", "kube-apiserver", "kubectl")
CONNECT_TIMEOUT_SECONDS = 5.0
CHUNK = 1 << 20


def download(place: Path, system: str, machine: str, report: Callable[[str], None]) -> None:
    """Fetch, check and unpack the archive for `system`/`machine` (Go's words) into the directory `place`.

    Raises:
        BinaryError: no archive is pinned for this platform, it cannot be reached, or its content is not the pinned one.
    """
    checksum = ENVTEST_SHA512.get(f"{system}-{machine}")
    if checksum is None:
        raise BinaryError(f"none is pinned for {system}-{machine}")
    url = ENVTEST_URL.format(version=ENVTEST_VERSION, system=system, machine=machine)
    with tempfile.TemporaryDirectory() as temporary:
        file = Path(temporary) / PurePosixPath(url).name
        try:
            with urllib.request.urlopen(url, timeout=CONNECT_TIMEOUT_SECONDS) as answer, file.open("wb") as output:
                report(f"downloading {file.name}")
                shutil.copyfileobj(answer, output, CHUNK)
        except OSError as error:
            raise BinaryError(f"{url} cannot be reached: {getattr(error, 'reason', error)}") from error
        unpack(file, place, checksum=checksum)


def unpack(file: Path, place: Path, *, checksum: str) -> None:
    """Check the whole file's SHA-512, then take exactly the three programs out of it, whatever folder they are in.

    Raises:
        BinaryError: another checksum, not a gzipped tar file, or a program is not inside.
    """
    with file.open("rb") as content:
        found = hashlib.file_digest(content, "sha512").hexdigest()
    if found != checksum:
        raise BinaryError(f"{file.name} has SHA-512 {found}, expected {checksum}: not used")
    try:
        with tarfile.open(file, mode="r:gz") as archive:
            for member in archive:
                program = PurePosixPath(member.name).name
                source = archive.extractfile(member) if member.isfile() and program in PROGRAMS else None
                if source is not None:
                    target = place / program
                    with target.open("wb") as output:
                        shutil.copyfileobj(source, output, CHUNK)
                    target.chmod(0o755)
    except (tarfile.TarError, OSError, EOFError) as error:
        raise BinaryError(f"{file.name} is not a gzipped tar file: {error}") from error
    missing = [program for program in PROGRAMS if not (place / program).exists()]
    if missing:
        raise BinaryError(f"{file.name} does not hold {', '.join(missing)}")

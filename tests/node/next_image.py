"""A newer version of an image, without building one: the archive of `make images` with a layer on top that says so."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from email import message_from_bytes
from pathlib import Path
from typing import IO

from tools.node.running import add_file

NEXT = "999.0.0"


def write_next(archive: Path, target: Path, *, name: str) -> None:
    """Write to `target` the image of a docker archive as another one, called `name`, of version `NEXT`."""
    with tarfile.open(archive) as old:
        [image] = json.load(_member(old, "manifest.json"))
        config = json.load(_member(old, image["Config"]))
        layer = _layer(old, image["Layers"][-1])
        digest = hashlib.sha256(layer).hexdigest()
        config["rootfs"]["diff_ids"].append(f"sha256:{digest}")
        config.setdefault("history", []).append({"created_by": "a newer version"})
        described = json.dumps(config).encode()
        config_name = f"{hashlib.sha256(described).hexdigest()}.json"
        manifest = {"Config": config_name, "RepoTags": [name], "Layers": [*image["Layers"], f"{digest}.tar"]}
        with tarfile.open(target, "w") as new:
            for kept in image["Layers"]:
                new.addfile(old.getmember(kept), _member(old, kept))
            add_file(new, f"{digest}.tar", layer)
            add_file(new, config_name, described)
            add_file(new, "manifest.json", json.dumps([manifest]).encode())


def _layer(archive: tarfile.TarFile, last: str) -> bytes:
    """The package's metadata again, with another version."""
    with tarfile.open(fileobj=_member(archive, last)) as layer:
        [path] = [getname for getname in layer.getnames() if getname.endswith(".dist-info/METADATA")]
        metadata = message_from_bytes(_member(layer, path).read())
    metadata.replace_header("Version", NEXT)
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as made:
        add_file(made, path, metadata.as_bytes())
    return content.getvalue()


def _member(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    found = archive.extractfile(name)
    assert found is not None, name
    return found

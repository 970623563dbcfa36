"""`python -m tools.images`, as `make images` calls it: the operator's and the worker's image, built and saved."""

from __future__ import annotations

import sys

import click

from compaction.cli.main import run
from tools.images.build import BuildSettings, Image, ensure_images


@click.command()
@click.option("--only", type=click.Choice([image.value for image in Image]), help="Build only this image.")
@click.option("--base-image", metavar="IMAGE", help="Debian (bookworm) base image; default: pulled, or built here.")
@click.option("--engine", type=click.Choice(["auto", "docker", "buildah"]), default="auto", show_default=True)
@click.option("--fresh", is_flag=True, help="Rebuild the base without cached layers, to include fixes of Debian.")
def command(*, only: str | None, base_image: str | None, engine: str, fresh: bool) -> None:
    """Build the images of this checkout; unchanged images are not built again.

    Prints one line for each: name, archive (what `docker load` and `ctr images import` read), size.
    """
    settings = BuildSettings(base_image=base_image, engine=engine, fresh=fresh)
    images = tuple(Image) if only is None else (Image(only),)
    for built in ensure_images(images, report=lambda line: click.echo(line, err=True), settings=settings):
        click.echo(f"{built.tag}\t{built.archive}\t{built.bytes >> 20} MiB")


if __name__ == "__main__":
    sys.exit(run(command, "python -m tools.images"))

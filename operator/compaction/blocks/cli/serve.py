"""`compactor blocks serve`: the HTTP endpoint where writers register blocks, and readers list the live ones."""

from __future__ import annotations

from typing import Final

import click

from compaction.blocks.cli.options import StorePlace, store_options
from compaction.cli.serving import Serving, serving_options

AUDIENCE: Final = "compaction-block-ingest"


@click.command("serve")
@store_options(may_be_new=True)
@serving_options(
    port=8090, audience=AUDIENCE, purpose="register blocks", rules="--tenants", noun="tenant", nouns="tenants"
)
def command(*, place: StorePlace, serving: Serving) -> None:
    """Serve the endpoint where writers register blocks and readers list the live ones, until SIGTERM or SIGINT.

    What it offers says /openapi.json. Without --secret-file and --allow-service-account it does not start.
    """
    # Who asks for help waits for no import of what serves.
    from compaction.blocks.serving.server import IngestServer

    with place.open() as store:
        serving.run(lambda gate, limits: IngestServer(store, gate, limits=limits))

"""`compactor staging serve`: the HTTP endpoint where writers stage objects on branches, and commit them."""

from __future__ import annotations

from typing import Final

import click

from compaction.cli.serving import Serving, serving_options
from compaction.staging.cli.options import StagingPlace, staging_options

AUDIENCE: Final = "compaction-staging"


@click.command("serve")
@staging_options(repository=False, policy=True)
@serving_options(
    port=8091,
    audience=AUDIENCE,
    purpose="write objects",
    rules="--repositories",
    noun="repository",
    nouns="repositories",
)
def command(*, place: StagingPlace, serving: Serving) -> None:
    """Serve the endpoint where writers stage objects and commit them, and readers list them, until SIGTERM or SIGINT.

    What it offers says /openapi.json. All repositories of the key-value store are served; --repositories restricts who
    may use which. Without --secret-file and --allow-service-account it does not start.
    """
    # Who asks for help waits for no import of what serves.
    from compaction.staging.serving.server import StagingServer

    with place.open() as store:
        serving.run(lambda gate, limits: StagingServer(store, gate, limits=limits))

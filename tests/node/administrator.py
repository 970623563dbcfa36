"""kubectl against the node of the tests, as its administrator."""

from __future__ import annotations

from node.on_node import plane_of
from tools.node.running import RunningNode


def kubectl(
    node: RunningNode, *args: str, input: str | None = None, check: bool = True, namespace: str | None = None
) -> str:
    """What the real kubectl printed; with `check` a failure shows its own words."""
    return plane_of(node).kubectl(*args, input=input, check=check, namespace=namespace).stdout

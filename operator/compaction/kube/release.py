"""Which release this is: workers say it in their Leases, the operator compares."""

from importlib.metadata import version
from typing import Final

OWN_VERSION: Final = version("compaction-operator")

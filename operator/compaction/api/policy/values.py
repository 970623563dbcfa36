"""Values that the specs of several kinds of store have: times and sizes that are not 0, names of Secrets, and the
certificates of authorities.
"""

import re
from typing import Annotated, Final

from pydantic import StringConstraints

from compaction.api.base import ApiModel
from compaction.api.rules import Checked, Rule
from compaction.api.text.values import DURATION_PATTERN
from compaction.errors import CONFIG_MAP

LASTING: Final = Rule(
    cel=f"!self.matches('{DURATION_PATTERN}') || self.matches('[1-9]')",
    message="must be longer than 0s, such as 36s",
    holds=lambda duration: duration > 0,
)
SOME_BYTES: Final = Rule(
    cel="type(self) == int ? self > 0 : !self.matches('^[0.]+[a-zA-Z]*$')",
    message="must be more than 0, such as 512Mi",
    holds=lambda quantity: quantity > 0,
)

_SECRET: Final = "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
SECRET_NAME: Final = Rule(
    cel=f"self.matches('{_SECRET}')",
    message="must be the name of a Secret: lower case letters, digits, '-' and '.'",
    holds=lambda name: re.fullmatch(_SECRET, name) is not None,
)
_KEY: Final = "^([-_a-zA-Z0-9][-._a-zA-Z0-9]*)$"
SECRET_KEY: Final = Rule(
    cel=f"self.matches('{_KEY}')",
    message="must be a key of a Secret: letters, digits, '-', '_' and '.', not beginning with '.'",
    holds=lambda key: re.fullmatch(_KEY, key) is not None,
)
"""Secrets are read from files of these names too (workers): neither may leave its directory."""

SecretName = Annotated[str, StringConstraints(min_length=1, max_length=253), Checked(SECRET_NAME)]
SecretKey = Annotated[str, StringConstraints(min_length=1, max_length=253), Checked(SECRET_KEY)]


class CaBundle(ApiModel):
    """Certificates of the authorities that have signed those of the servers, in PEM: one Secret or one ConfigMap."""

    RULES = (
        Rule(
            cel="has(self.secretName) != has(self.configMapName)",
            message="set secretName or configMapName, one of both",
            holds=lambda bundle: (bundle.secret_name is None) != (bundle.config_map_name is None),
        ),
    )

    secret_name: SecretName | None = None
    """Name of a Secret in the policy's namespace."""
    config_map_name: SecretName | None = None
    """Name of a ConfigMap in the policy's namespace, such as one that trust-manager writes."""
    key: SecretKey = "ca.crt"
    """Key whose value is the certificates, one after another."""

    @property
    def source(self) -> str:
        """Where Secrets are read: the name of the Secret, or of the ConfigMap behind `CONFIG_MAP`."""
        return self.secret_name or f"{CONFIG_MAP}{self.config_map_name}"

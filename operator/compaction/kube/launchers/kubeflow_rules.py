"""What Kubeflow's Spark operator refuses in `sparkConf`, and what says the same elsewhere.

Its admission webhook (2.5.2, internal/webhook/sparkconf_validator.go) refuses an application that holds one of these
keys, whatever the value: the operator writes them itself, from fields of the application. A test sends each key through
the validator of the pinned release (tests/kube/launchers/kubeflow/test_release.py).
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from compaction.exceptions import LaunchError

_ACCOUNT: Final = "set spec.workers.serviceAccountName instead"
_EXECUTORS_ACCOUNT: Final = "executors run under an account without permissions, which cannot be changed"
_IMAGE: Final = "set spec.workers.image instead"
_CREDENTIALS: Final = "a driver uses the token of its service account: set spec.workers.serviceAccountName instead"
_MASTER: Final = "the Spark operator sets it: remove it"

REFUSED_CONF: Final[Mapping[str, str]] = MappingProxyType(
    {
        "spark.kubernetes.authenticate.driver.serviceAccountName": _ACCOUNT,
        "spark.kubernetes.authenticate.executor.serviceAccountName": _EXECUTORS_ACCOUNT,
        "spark.kubernetes.authenticate.oauthTokenFile": _CREDENTIALS,
        "spark.kubernetes.authenticate.oauthToken": _CREDENTIALS,
        "spark.kubernetes.authenticate.driver.oauthTokenFile": _CREDENTIALS,
        "spark.kubernetes.authenticate.driver.oauthToken": _CREDENTIALS,
        "spark.kubernetes.authenticate.executor.oauthTokenFile": _CREDENTIALS,
        "spark.kubernetes.authenticate.executor.oauthToken": _CREDENTIALS,
        "spark.master": _MASTER,
        "spark.kubernetes.driver.master": _MASTER,
        "spark.kubernetes.container.image": _IMAGE,
        "spark.kubernetes.driver.container.image": _IMAGE,
        "spark.kubernetes.executor.container.image": _IMAGE,
    }
)
"""Refused keys -> what a user does instead."""
_NAMESPACE: Final = "spark.kubernetes.namespace"


def check_user_conf(conf: Mapping[str, str], *, namespace: str) -> None:
    """Raises LaunchError when a policy's sparkConf holds what Kubeflow's webhook refuses."""
    for key in conf:
        if key in REFUSED_CONF:
            raise LaunchError(
                f"spec.workers.sparkConf.{key} cannot be used with Kubeflow's Spark operator: {REFUSED_CONF[key]}"
            )
    if conf.get(_NAMESPACE, namespace) != namespace:
        raise LaunchError(
            f"spec.workers.sparkConf.{_NAMESPACE} is {conf[_NAMESPACE]!r}, and workers run in the namespace of their "
            f"policy, {namespace}: remove it"
        )


def without_refused(conf: Mapping[str, str]) -> dict[str, str]:
    """The settings without those that fields of the application say already."""
    return {key: value for key, value in conf.items() if key not in REFUSED_CONF}

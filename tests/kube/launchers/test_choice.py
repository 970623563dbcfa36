"""Which launcher a worker gets, from what the policy wants and what is there."""

from __future__ import annotations

import pytest

from compaction.api.enums import LauncherType
from compaction.kube.errors import LaunchError
from compaction.kube.launchers.objects import Availability, LauncherChoice, choose

AUTO, PROCESS, KUBEFLOW, APACHE, POD = (
    LauncherType.AUTO,
    LauncherType.PROCESS,
    LauncherType.KUBEFLOW,
    LauncherType.APACHE,
    LauncherType.POD,
)
ABSENT, FORBIDDEN, USABLE = Availability.ABSENT, Availability.FORBIDDEN, Availability.USABLE


def offer(kubeflow: Availability, apache: Availability, pod: Availability, *, in_pod: bool) -> LauncherChoice:
    return LauncherChoice({KUBEFLOW: kubeflow, APACHE: apache, POD: pod}, in_pod=in_pod)


@pytest.mark.parametrize(
    ("there", "taken"),
    [
        (offer(USABLE, USABLE, USABLE, in_pod=True), KUBEFLOW),
        (offer(USABLE, ABSENT, USABLE, in_pod=False), KUBEFLOW),
        (offer(ABSENT, USABLE, USABLE, in_pod=True), APACHE),
        (offer(FORBIDDEN, USABLE, USABLE, in_pod=True), APACHE),
        (offer(FORBIDDEN, FORBIDDEN, USABLE, in_pod=True), POD),
        (offer(ABSENT, ABSENT, USABLE, in_pod=True), POD),
        (offer(ABSENT, ABSENT, USABLE, in_pod=False), PROCESS),
        (offer(ABSENT, ABSENT, FORBIDDEN, in_pod=False), PROCESS),
        (LauncherChoice(), PROCESS),
    ],
)
def test_auto_takes_what_there_is(there: LauncherChoice, taken: LauncherType) -> None:
    assert choose(AUTO, there) is taken


@pytest.mark.parametrize("wanted", [KUBEFLOW, APACHE, POD, PROCESS])
def test_a_named_launcher_is_taken_whatever_else_there_is(wanted: LauncherType) -> None:
    assert choose(wanted, offer(USABLE, USABLE, USABLE, in_pod=False)) is wanted


@pytest.mark.parametrize(
    ("wanted", "there", "advice"),
    [
        (KUBEFLOW, offer(ABSENT, USABLE, USABLE, in_pod=True), "does not serve sparkapplications.sparkoperator.k8s.io"),
        (APACHE, offer(USABLE, ABSENT, USABLE, in_pod=True), "does not serve sparkapplications.spark.apache.org"),
        (APACHE, offer(USABLE, FORBIDDEN, USABLE, in_pod=True), "Grant it get, list, create and delete on sparkapp"),
        (POD, offer(ABSENT, ABSENT, FORBIDDEN, in_pod=False), "Grant it get, list, create and delete on pods"),
        (AUTO, offer(ABSENT, ABSENT, FORBIDDEN, in_pod=True), "Grant it get, list, create and delete on pods"),
    ],
)
def test_what_cannot_be_used_says_what_to_do(wanted: LauncherType, there: LauncherChoice, advice: str) -> None:
    with pytest.raises(LaunchError) as refusal:
        choose(wanted, there)
    assert advice in str(refusal.value)

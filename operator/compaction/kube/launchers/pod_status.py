"""A worker by the status of its driver pod, and in one sentence how it ended. Pure."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from compaction.api.enums import WorkerEnding, WorkerTrouble
from compaction.api.names import ANNOTATION_DRIVER_MEMORY, ANNOTATION_EXECUTOR_MEMORY, POLICY_KIND
from compaction.api.text.printing import INT64_MAX, cut, format_bytes, number_in, printable, redacted
from compaction.kube.client.transport import Obj
from compaction.kube.launchers.base import PolicyKey, WorkerObservation, WorkerPhase
from compaction.kube.launchers.pods import EXECUTOR_CONTAINER, QUEUE_LABEL, UI_PORT
from compaction.worker.loop import EXIT_WORDS, LAST_WORDS, WorkerExit

# The end of a worker, in one sentence, from its exit code and the end of its log, or of what its submission printed.
#
# A log ends with the last writer's lines: when the API server is away, with the stack traces of a client inside of
# the JVM. What a person reads in a job's attempts is what the worker itself said, or else the last line that is no
# trace.

LONGEST: Final = 300
"""Characters of a log in a message."""
_READ: Final = 32_768
"""Characters of a log that are searched. A pod's status has 4096 bytes of it, Kubeflow's all that spark-submit said."""
_OF_A_TRACE: Final = re.compile(r"\s|Traceback \(")
"""Lines of a stack trace, of Java and of Python, are indented; the error itself is not."""
_OURS: Final = re.compile(r"\d{4}-\d\d-\d\dT\S+ \[\w+ *\] (?P<said>.*?)(?:\s+\[[\w.]+\].*)?")
"""A line of `kube.logging` in its form for people: time, level, what was said, logger, keys."""
_SPARKS_OWN: Final = re.compile(r"\d\d/\d\d/\d\d \d\d:\d\d:\d\d (?:WARN|INFO|DEBUG) ")
_CAUSED: Final = "Caused by: "
_THROWN: Final = re.compile(r'.*?Exception in thread "[^"]*" (?P<said>.+)')
_ANSWERED: Final = re.compile(r"[\w.$]+: (?:Failure executing: .*? Message: )(?P<said>.+?)(?:\. Received status: .*)?")
"""What the API server answered to Spark's client, which says beside it where it asked, and all of it once more."""
_ERROR: Final = "error: "


def ending_of(code: int | None, output: str) -> str:
    """Say how a worker ended with this exit code (negative: a signal; None: not known) and this output."""
    if code is None:
        words = last_words(output)
        return f"its process is gone; its log ends with: {words}" if words else ""
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    words = EXIT_WORDS.get(code) or last_words(output)
    return f"exit code {code}: {words}" if words else f"exit code {code}"


def last_words(output: str) -> str:
    """One printable line of at most `LONGEST` characters: the worker's own last words, or the last line that says much.
    Without credentials, as a status may be read by those who may not read the log.

    Empty only where there is nothing to say.
    """
    # A key and its end may be lines apart, so before there are lines.
    lines = [line.rstrip() for line in redacted(_end_of(output)).splitlines() if line.strip()]
    telling = [_said(line) for line in lines if not _OF_A_TRACE.match(line)] or [line.strip() for line in lines]
    own = [line for line in telling if line.startswith((_ERROR, LAST_WORDS))]
    loud = [line for line in telling if not _SPARKS_OWN.match(line)]
    chosen = next((found[-1] for found in (own, _thrown(telling), loud, telling) if found), "")
    return cut(printable(chosen.removeprefix(_CAUSED)), LONGEST)


def _thrown(lines: list[str]) -> list[str]:
    """The exception that ended a program, with its last cause where that says something else."""
    for number, line in enumerate(lines):
        if (thrown := _THROWN.fullmatch(line)) is not None:
            causes = [later.removeprefix(_CAUSED) for later in lines[number:] if later.startswith(_CAUSED)]
            first, cause = (_answered(said) for said in (thrown["said"], causes[-1] if causes else ""))
            return [first if cause in first else f"{first}; caused by {cause}"]
    return []


def _answered(said: str) -> str:
    found = _ANSWERED.fullmatch(said)
    return found["said"] if found is not None else said


def bounded(words: str) -> str:
    """Return what Kubernetes says of a pod, as it may stand in a message: one printable line, without credentials."""
    return cut(printable(redacted(words[:_READ])), LONGEST)


def _end_of(output: str) -> str:
    """The last lines, whole ones where there are several: half a line could be a value without its name."""
    if len(output) <= _READ:
        return output
    end = output[-_READ:]
    return end.partition("\n")[2] or end


def _said(line: str) -> str:
    """Return what a line of ours says, without time, level and keys; any other line as it is."""
    if line.startswith("{"):
        try:
            said = json.loads(line).get("message")
        except (ValueError, RecursionError):
            return line
        return said if isinstance(said, str) and said else line
    match = _OURS.fullmatch(line)
    return match["said"] if match is not None else line


# The state of a worker, from the status of its driver pod. Pure: a Pod object in, an observation out.
#
# A disruption (eviction, preemption, a drained or lost node) is reported by the condition DisruptionTarget, or by the
# reasons that kubelets and node controllers have always written; by TerminationTarget when Kueue takes an admitted
# pod back, which it deletes; being out of memory by OOMKilled of the container, or by the signal of the kernel's
# killer where a shell stands between (137 alone proves nothing: a deleted pod ends with it, too).
#
# A policy's author may add containers. What they print may hold a Secret, and a reader of the status may have no
# right to it. Only the text of the container that runs Spark is copied, without credentials; of any other container
# there are its name, the reason and the exit code.

_IMAGE: Final = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable",
     "ImageInspectError", "SignatureValidationFailed"}
)  # fmt: skip
_MISSING: Final = "CreateContainerConfigError"
_COMMAND: Final = frozenset({"CreateContainerError", "RunContainerError", "StartError"})
_CONFIG: Final = _COMMAND | {_MISSING, "PreCreateHookError", "PostStartHookError"}
_QUOTES_NOTHING: Final = _IMAGE | {_MISSING}
"""Texts that name images, Secrets and ConfigMaps. Those of `_COMMAND` may quote a command, where variables have their
values, and those of hooks what these print: a template may give a hook to the container that runs Spark, too.
"""
_DISRUPTED: Final = frozenset(
    {"Evicted", "Preempted", "Preempting", "NodeLost", "NodeShutdown", "Terminated", "Shutdown", "NodeAffinity",
     "DeletionByTaintManager", "DeletionByPodGC", "EvictionByEvictionAPI", "PreemptionByScheduler",
     "TerminationByKubelet", "UnexpectedAdmissionError", "OutOfcpu", "OutOfmemory", "OutOfpods"}
)  # fmt: skip
_TAKEN_AWAY: Final = frozenset({"DisruptionTarget", "TerminationTarget"})
"""Conditions of a pod that ends for a reason outside of it: the cluster's, and Kueue's."""
_OOM: Final = "OOMKilled"
_INIT_FAILED: Final = "InitContainerFailed"
CREATING_SECONDS: Final = 60.0
"""A container that is still being made after so long waits for a volume or a Secret, as a rule."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """The time at which this process first saw an object (wall clock), and for how many seconds it has (monotonic):
    what the API server's clock says about its age is never compared with ours.
    """

    started: datetime
    age: float


def owner_of(body: Obj) -> str:
    """The name of the policy that owns an object; empty for one that is none of ours, whatever its labels say."""
    owners = body["metadata"].get("ownerReferences") or ()
    ours = (owner for owner in owners if owner.get("kind") == POLICY_KIND and owner.get("controller"))
    return next((str(item.get("name") or "") for item in ours), "")


def policy_of(body: Obj) -> PolicyKey:
    """Return the policy whose worker an object is."""
    return PolicyKey(body["metadata"]["namespace"], owner_of(body))


def memory_of(body: Obj, annotation: str) -> int:
    """The bytes of memory that pods were given; 0 when nothing readable says so."""
    return number_in((body["metadata"].get("annotations") or {}).get(annotation), limit=INT64_MAX) or 0


def is_being_deleted(body: Obj) -> bool:
    """True once the deletion of an object was requested."""
    return "deletionTimestamp" in body["metadata"]


def observe_pod(body: Obj, since: Sighting, *, about: Obj | None = None, container: str = "") -> WorkerObservation:
    """The worker that a driver pod is; or that `about` is, the application it belongs to.

    `container` runs Spark: in pods of ours the first one, which no template can change. Spark's submission puts its own
    behind those of a template, under the name that it was given.
    """
    status = body.get("status") or {}
    worker = body if about is None else about
    container = container or str(body["spec"]["containers"][0]["name"])
    found = _ended(body, status, container) or _pending(body, status, container, since.age)
    phase, reason, message, trouble, ending, code = found or (WorkerPhase.RUNNING, "Running", "", None, None, None)
    return WorkerObservation(
        name=worker["metadata"]["name"],
        policy=policy_of(worker),
        phase=phase,
        started=since.started,
        exit_code=code,
        reason=reason,
        message=message,
        trouble=trouble,
        ending=ending,
        ui=_ui(body, status) if phase is WorkerPhase.RUNNING else "",
        memory=memory_of(worker, ANNOTATION_DRIVER_MEMORY),
        executor_memory=memory_of(worker, ANNOTATION_EXECUTOR_MEMORY),
        leaving=is_being_deleted(body) or is_being_deleted(worker),
    )


def with_executors(worker: WorkerObservation, waiting: Sequence[Obj]) -> WorkerObservation:
    """The worker, and what its executors that have not begun wait for: its Spark starts when the first of them runs."""
    if worker.phase is not WorkerPhase.RUNNING or worker.trouble is not None:
        return worker
    for pod in waiting:
        # How old it is, nobody has seen.
        executor = observe_pod(pod, Sighting(worker.started, 0.0), container=EXECUTOR_CONTAINER)
        if executor.trouble is not None:
            message = f"its executor {executor.name}: {executor.message}"
            return replace(worker, reason=executor.reason, message=message, trouble=executor.trouble)
    return worker


_Found = tuple[WorkerPhase, str, str, WorkerTrouble | None, WorkerEnding | None, int | None]


def _ended(body: Obj, status: Mapping[str, Any], container: str) -> _Found | None:
    ours = (item for item in status.get("containerStatuses") or () if item.get("name") == container)
    terminated = next(((item.get("state") or {}).get("terminated") or {} for item in ours), {})
    # A container beside ours, a proxy's, may go on for ever.
    if status.get("phase") not in ("Succeeded", "Failed") and not terminated:
        return None
    code = terminated.get("exitCode")
    output = str(terminated.get("message") or status.get("message") or "")
    words = last_words(output)
    if status["phase"] == "Succeeded" or (terminated and code == 0):
        return WorkerPhase.SUCCEEDED, "Completed", words, None, WorkerEnding.COMPLETED, code
    disruption = _disruption(status)
    if disruption is not None:
        reason, said = disruption
        return WorkerPhase.FAILED, reason, f"{reason}: {said or words}", None, WorkerEnding.DISRUPTED, code
    if not terminated and (failed := _failed_init(body, status)):
        return WorkerPhase.FAILED, _INIT_FAILED, failed, None, WorkerEnding.FAILED, None
    if terminated.get("reason") == _OOM:
        return WorkerPhase.FAILED, _OOM, _out_of_memory(body), None, WorkerEnding.OUT_OF_MEMORY, code
    reason = str(terminated.get("reason") or status.get("reason") or "Failed")
    words = ending_of(code, output) if code is not None else words
    return WorkerPhase.FAILED, reason, words, None, ending_by_code(code), code


def ending_by_code(code: int | None) -> WorkerEnding:
    """Return the ending that a worker's own exit code says, where nothing else is known."""
    if code == WorkerExit.EXECUTORS_OUT_OF_MEMORY:
        return WorkerEnding.EXECUTORS_OUT_OF_MEMORY
    return WorkerEnding.FAILED


def _out_of_memory(body: Obj) -> str:
    had = memory_of(body, ANNOTATION_DRIVER_MEMORY)
    return (
        f"killed for using more memory than its pod has ({_OOM}{f', {format_bytes(had)}' if had else ''}): raise "
        "spec.workers.driver.memory, or driver.maxMemory, up to which the next one gets twice as much"
    )


def _failed_init(body: Obj, status: Mapping[str, Any]) -> str:
    """Say which init container failed, and how; empty when none did."""
    for item in status.get("initContainerStatuses") or ():
        ended = (item.get("state") or {}).get("terminated") or {}
        if ended.get("exitCode"):
            metadata, name = body["metadata"], item.get("name")
            return (
                f"the init container {name} of its pod failed ({ended.get('reason') or 'Error'}, exit code "
                f"{ended['exitCode']}): kubectl logs -n {metadata['namespace']} {metadata['name']} -c {name}"
            )
    return ""


def _disruption(status: Mapping[str, Any]) -> tuple[str, str] | None:
    for condition in status.get("conditions") or ():
        if condition.get("type") in _TAKEN_AWAY and condition.get("status") == "True":
            return str(condition.get("reason") or "Disrupted"), bounded(str(condition.get("message") or ""))
    if status.get("reason") in _DISRUPTED:
        return str(status["reason"]), bounded(str(status.get("message") or ""))
    return None


def _pending(body: Obj, status: Mapping[str, Any], container: str, age: float) -> _Found | None:
    if status.get("phase", "Pending") != "Pending":
        return None
    if body["spec"].get("schedulingGates"):
        return _waits("SchedulingGated", _held_back(body), WorkerTrouble.QUEUED)
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            message = str(condition.get("message") or "the scheduler found no node for its pod")
            return _waits(str(condition.get("reason") or "Unschedulable"), message, WorkerTrouble.UNSCHEDULABLE)
    for item in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        waiting = (item.get("state") or {}).get("waiting") or {}
        reason = str(waiting.get("reason") or "")
        if reason in _IMAGE:
            return _waits(reason, _why(body, item, waiting, container), WorkerTrouble.IMAGE_PULL)
        if reason in _CONFIG:
            return _waits(reason, _why(body, item, waiting, container), WorkerTrouble.POD_CONFIG)
    if status.get("conditions") and age > CREATING_SECONDS:
        message = (
            f"its container has not been made within {CREATING_SECONDS:.0f} s: a volume or a Secret is missing, as a "
            f"rule (kubectl describe pod {body['metadata']['name']})"
        )
        return _waits("ContainerCreating", message, WorkerTrouble.POD_CONFIG)
    return WorkerPhase.PENDING, "Pending", "", None, None, None


def _held_back(body: Obj) -> str:
    """By which queue, where one is named. Why it does stands in its Workload, which is not ours to read."""
    metadata = body["metadata"]
    gates = ", ".join(gate["name"] for gate in body["spec"]["schedulingGates"])
    if not (queue := (metadata.get("labels") or {}).get(QUEUE_LABEL)):
        return f"its pod is held back by {gates}"
    namespace = metadata["namespace"]
    return (
        f"LocalQueue {namespace}/{queue} has not admitted its pod ({gates}): kubectl get "
        f"localqueues,workloads.kueue.x-k8s.io -n {namespace} shows whether it exists, is stopped, or has no quota left"
    )


def _why(body: Obj, item: Mapping[str, Any], waiting: Mapping[str, Any], container: str) -> str:
    """Say why a container waits: in the kubelet's words, where they quote nothing of a container that is not ours."""
    name, reason = str(item.get("name") or ""), str(waiting["reason"])
    if reason in _QUOTES_NOTHING or (reason in _COMMAND and name == container):
        return bounded(str(waiting.get("message") or "")) or f"image {item.get('image', '')}"
    metadata = body["metadata"]
    return f"{reason} of container {name}: kubectl describe pod -n {metadata['namespace']} {metadata['name']}"


def _waits(reason: str, message: str, trouble: WorkerTrouble) -> _Found:
    return WorkerPhase.PENDING, reason, message, trouble, None, None


def _ui(body: Obj, status: Mapping[str, Any]) -> str:
    ports = [port for container in body["spec"]["containers"] for port in container.get("ports") or ()]
    if status.get("podIP") and any(port.get("containerPort") == UI_PORT for port in ports):
        address = str(status["podIP"])
        return f"http://[{address}]:{UI_PORT}" if ":" in address else f"http://{address}:{UI_PORT}"
    return ""

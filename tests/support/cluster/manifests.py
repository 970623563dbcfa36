"""Objects for tests of the resources: the smallest valid ones, and a table of wrong specs with the advice they get.

A wrong spec is a path into the object and the value put there. The same table is tried on the models and on a real API
server, so the two cannot drift apart.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, Final

SEGMENT_1 = "0000000000000001.segment"
SEGMENT_2 = "0000000000000002.segment"


class _Absent:
    def __repr__(self) -> str:
        return "absent"


ABSENT = _Absent()


def policy_object(name: str = "logs", **spec: Any) -> dict[str, Any]:
    """The smallest policy there is; keyword arguments are further members of spec."""
    return {
        "apiVersion": "compaction.dev/v1alpha1",
        "kind": "CompactionPolicy",
        "metadata": {"name": name},
        "spec": {"store": {"segmentLogs": {"root": "/data/ra"}}, **spec},
    }


def job_object(name: str = "logs-1", *, policy: str = "logs", **spec: Any) -> dict[str, Any]:
    """A job as one makes it by hand; keyword arguments are further members of spec."""
    sources = {"segmentLog": {"path": "/data/ra/a", "groups": [{"segments": [SEGMENT_1, SEGMENT_2]}]}}
    return {
        "apiVersion": "compaction.dev/v1alpha1",
        "kind": "CompactionJob",
        "metadata": {"name": name},
        "spec": {"policyRef": {"name": policy}, "kind": "SegmentRewrite", "sources": sources, **spec},
    }


@dataclass(frozen=True, slots=True)
class Wrong:
    """A value put at `path` (below the object), and what the refusal must say: the field, and the advice.

    `model` is what the models say where their words differ from the API server's.
    """

    path: str
    value: Any
    field: str
    advice: str
    model: str = ""

    @property
    def model_advice(self) -> str:
        return self.model or self.advice

    def __str__(self) -> str:
        return f"{self.path}={str(self.value)[:40]}"

    def applied_to(self, document: dict[str, Any]) -> dict[str, Any]:
        """A copy of the document with the wrong value in its place."""
        changed = copy.deepcopy(document)
        *parents, last = self.path.split("/")
        node = changed
        for step in parents:
            node = node.setdefault(step, {})
        if self.value is ABSENT:
            del node[last]
        else:
            node[last] = self.value
        return changed


LOGS = "spec/store/segmentLogs"
LOGS_FIELD = "spec.store.segmentLogs"
WORKERS_FIELD = "spec.workers"
PODS_ADVICE = "is for workers in pods, and launcher is process"
DURATION_ADVICE = "write a duration such as 30s, 10m, 1h30m or 90d"
QUANTITY_ADVICE = "write bytes as a whole number or with a suffix, such as 500M, 64Mi or 1Gi"

CRON_ADVICE = "write five cron fields (minute, hour, day of month, month, day of week)"
ZONE_ADVICE = "write the name of a time zone of the IANA database"
NEVER_ADVICE = "names a day that its months do not have"
SCHEDULE = "spec/trigger/schedule"
SCHEDULE_FIELD = "spec.trigger.schedule"
WINDOW_FIELD = "spec.trigger.windows[0]"


def _windows(**member: Any) -> list[dict[str, Any]]:
    return [{"schedule": "0 22 * * *", "duration": "6h"} | member]


WRONG_POLICIES = (
    Wrong("spec", ABSENT, "spec", "Required value", "is required"),
    Wrong("spec/store", ABSENT, "spec.store", "Required value", "is required"),
    Wrong("spec/store", {}, "spec.store", "set exactly one store: segmentLogs"),
    Wrong(f"{LOGS}/root", ABSENT, f"{LOGS_FIELD}.root", "Required value", "is required"),
    Wrong(f"{LOGS}/root", "data/ra", f"{LOGS_FIELD}.root", "must be an absolute path, such as /data/ra"),
    Wrong(f"{LOGS}/root", "/data/../etc", f"{LOGS_FIELD}.root", "must not contain '..': write the path it leads to"),
    Wrong(f"{LOGS}/root", "/data/..", f"{LOGS_FIELD}.root", "must not contain '..'"),
    Wrong(f"{LOGS}/root", "/", f"{LOGS_FIELD}.root", "must name a directory below /"),
    *(
        Wrong(f"{LOGS}/root", path, f"{LOGS_FIELD}.root", "must not lead through /proc, /sys or /dev")
        for path in ("/proc/self/root/data", "//proc/1/root", "/./dev/fd/3", "/sys", "/dev")
    ),
    Wrong(f"{LOGS}/root", "/data/\0ra", f"{LOGS_FIELD}.root", "must not contain a NUL character"),
    Wrong(f"{LOGS}/include", ["["], f"{LOGS_FIELD}.include[0]", "must close every '['"),
    Wrong(f"{LOGS}/include", ["**", "[a/b]"], f"{LOGS_FIELD}.include[1]", "must close every '['"),
    Wrong(f"{LOGS}/exclude", ["a/***"], f"{LOGS_FIELD}.exclude[0]", "write ** for any depth, * within one name"),
    Wrong(f"{LOGS}/include", ["a\0b"], f"{LOGS_FIELD}.include[0]", "must not contain a NUL character"),
    Wrong(f"{LOGS}/exclude", ["\0"], f"{LOGS_FIELD}.exclude[0]", "must not contain a NUL character"),
    Wrong(f"{LOGS}/root", "/" + "x" * 4096, f"{LOGS_FIELD}.root", "4096"),
    Wrong(f"{LOGS}/include", [], f"{LOGS_FIELD}.include", "at least 1 item"),
    Wrong(f"{LOGS}/include", ["/abs"], f"{LOGS_FIELD}.include[0]", "must be relative to root"),
    Wrong(f"{LOGS}/exclude", ["a", "../b"], f"{LOGS_FIELD}.exclude[1]", "only directories below root are compacted"),
    Wrong(f"{LOGS}/maxEntriesPerSegment", 65536, f"{LOGS_FIELD}.maxEntriesPerSegment", "less than or equal to 65535"),
    Wrong(f"{LOGS}/maxEntriesPerSegment", "4096", f"{LOGS_FIELD}.maxEntriesPerSegment", "integer"),
    Wrong(f"{LOGS}/maxBytesPerSegment", 0, f"{LOGS_FIELD}.maxBytesPerSegment", "must be more than 0, such as 64M"),
    Wrong(f"{LOGS}/maxBytesPerSegment", "0Mi", f"{LOGS_FIELD}.maxBytesPerSegment", "must be more than 0, such as 64M"),
    Wrong(f"{LOGS}/maxBytesPerSegment", "64MB", f"{LOGS_FIELD}.maxBytesPerSegment", QUANTITY_ADVICE),
    Wrong(f"{LOGS}/maxBytesPerSegment", -1, f"{LOGS_FIELD}.maxBytesPerSegment", QUANTITY_ADVICE),
    Wrong(f"{LOGS}/maxSourcesPerGroup", 9, f"{LOGS_FIELD}.maxSourcesPerGroup", "less than or equal to 8"),
    Wrong(f"{LOGS}/whenIndexesMissing", "Guess", f"{LOGS_FIELD}.whenIndexesMissing", "TreatAsEmpty"),
    Wrong(f"{LOGS}/ownership", "Assumed", f"{LOGS_FIELD}.ownership", "Stopped"),
    Wrong("spec/trigger/interval", "0s", "spec.trigger.interval", "must be longer than 0s, such as 1m"),
    Wrong("spec/trigger/interval", "1 minute", "spec.trigger.interval", DURATION_ADVICE),
    Wrong("spec/trigger/interval", "-5s", "spec.trigger.interval", DURATION_ADVICE),
    Wrong("spec/trigger/interval", 60, "spec.trigger.interval", "must be of type string", DURATION_ADVICE),
    Wrong("spec/trigger/interval", "1.5d", "spec.trigger.interval", DURATION_ADVICE),
    Wrong("spec/trigger/interval", "1h1d", "spec.trigger.interval", DURATION_ADVICE),
    Wrong("spec/trigger/interval", "0d", "spec.trigger.interval", "must be longer than 0s"),
    Wrong("spec/trigger/cooldown", "10", "spec.trigger.cooldown", DURATION_ADVICE),
    Wrong(f"{LOGS}/thresholds", {"debtBytes": "many"}, f"{LOGS_FIELD}.thresholds.debtBytes", QUANTITY_ADVICE),
    Wrong(f"{LOGS}/thresholds", {"debtSegments": -1}, f"{LOGS_FIELD}.thresholds.debtSegments", "or equal to 0"),
    *(
        Wrong(SCHEDULE, text, SCHEDULE_FIELD, CRON_ADVICE)
        for text in (
            "0 2 * *",
            "0 2 * * * *",
            "0 2 * * MO",
            "0 2 * * *\n",
            "*/0 * * * *",
            "0 2 ? * L",
            "TZ=UTC 0 2 * * *",
        )
    ),
    *(
        Wrong(SCHEDULE, text, SCHEDULE_FIELD, advice)
        for text, advice in (
            ("@daily", "macros are not supported; write 0 0 * * *"),
            ("@weekly", "macros are not supported; write 0 0 * * 0"),
            ("@reboot", "macros are not supported; write five cron fields"),
            ("60 2 * * *", "minute 60 is out of range 0-59"),
            ("0 25 * * *", "hour 25 is out of range 0-23"),
            ("0 1-4,20-240/2 * * *", "hour 240 is out of range 0-23"),
            ("0 2 0 * *", "day of month 0 is out of range 1-31"),
            ("0  2   1  13  *", "month 13 is out of range 1-12"),
            ("0 2 * * 8", "day of week 8 is out of range 0-7"),
        )
    ),
    Wrong(SCHEDULE, "", SCHEDULE_FIELD, "at least 1 char", "at least 1 character"),
    Wrong(SCHEDULE, "0 22-5 * * *", SCHEDULE_FIELD, "write MON-FRI, and 22-23,0-5 instead of 22-5"),
    Wrong(SCHEDULE, "0 2 * * FRI-MON", SCHEDULE_FIELD, "ranges must ascend"),
    Wrong(SCHEDULE, "0 2 * 11-2/2 *", SCHEDULE_FIELD, "ranges must ascend"),
    Wrong(SCHEDULE, "0 2 30 2 *", SCHEDULE_FIELD, NEVER_ADVICE),
    Wrong(SCHEDULE, "0 2 31 4,jun,09 *", SCHEDULE_FIELD, NEVER_ADVICE),
    *(
        Wrong("spec/trigger/timeZone", name, "spec.trigger.timeZone", ZONE_ADVICE)
        for name in ("Local", "Mars/Phobos", "+02:00", "../etc/passwd", "America", "europe berlin")
    ),
    Wrong("spec/trigger/windows", _windows(duration="30s"), f"{WINDOW_FIELD}.duration", "must be from 1m to 31d"),
    Wrong("spec/trigger/windows", _windows(duration="745h"), f"{WINDOW_FIELD}.duration", "must be from 1m to 31d"),
    Wrong("spec/trigger/windows", _windows(duration="31d1ms"), f"{WINDOW_FIELD}.duration", "must be from 1m to 31d"),
    Wrong("spec/trigger/windows", _windows(duration="0d59s"), f"{WINDOW_FIELD}.duration", "must be from 1m to 31d"),
    Wrong("spec/trigger/windows", _windows(duration="long"), f"{WINDOW_FIELD}.duration", DURATION_ADVICE),
    Wrong("spec/trigger/windows", _windows(schedule="nightly"), f"{WINDOW_FIELD}.schedule", CRON_ADVICE),
    Wrong("spec/trigger/windows", [{"duration": "1h"}], f"{WINDOW_FIELD}.schedule", "Required value", "is required"),
    Wrong("spec/trigger/windows", _windows() * 17, "spec.trigger.windows", "at most 16 items"),
    Wrong("spec/approval", "Maybe", "spec.approval", "Manual"),
    Wrong("spec/limits/bytesPerSecond", 0, "spec.limits.bytesPerSecond", "must be more than 0, such as 50M"),
    Wrong("spec/limits/bytesPerSecond", "0.0k", "spec.limits.bytesPerSecond", "must be more than 0, such as 50M"),
    Wrong("spec/limits/bytesPerSecond", "fast", "spec.limits.bytesPerSecond", QUANTITY_ADVICE),
    Wrong("spec/limits/maxBytesPerJob", "0.0Gi", "spec.limits.maxBytesPerJob", "must be more than 0, such as 1Gi"),
    Wrong("spec/limits/maxConcurrentJobs", 0, "spec.limits.maxConcurrentJobs", "greater than or equal to 1"),
    Wrong("spec/limits/maxAttempts", 21, "spec.limits.maxAttempts", "less than or equal to 20"),
    Wrong("spec/lease/durationSeconds", 0, "spec.lease.durationSeconds", "greater than or equal to 1"),
    Wrong("spec/workers/launcher", "yarn", "spec.workers.launcher", "process"),
    Wrong("spec/workers/serviceAccountName", "", "spec.workers.serviceAccountName", "at least 1 char"),
    Wrong("spec/workers/imagePullPolicy", "Sometimes", "spec.workers.imagePullPolicy", "IfNotPresent"),
    Wrong(
        "spec/workers/imagePullSecrets", [{"name": "A_B"}], f"{WORKERS_FIELD}.imagePullSecrets[0].name", "lower case"
    ),
    Wrong("spec/workers/driver", {"memory": "100Mi"}, f"{WORKERS_FIELD}.driver.memory", "must be at least 768Mi"),
    Wrong("spec/workers/driver", {"memory": 1024}, f"{WORKERS_FIELD}.driver.memory", "must be at least 768Mi"),
    Wrong("spec/workers/driver", {"cpu": "0m"}, f"{WORKERS_FIELD}.driver.cpu", "must be more than 0, such as 500m"),
    Wrong("spec/workers/executor", {"cpuLimit": "2 cores"}, f"{WORKERS_FIELD}.executor.cpuLimit", "such as 2, 0.5 or"),
    Wrong("spec/workers/executor", {"instances": -1}, f"{WORKERS_FIELD}.executor.instances", "or equal to 0"),
    Wrong(
        "spec/workers/dynamicAllocation",
        {"minExecutors": 3, "maxExecutors": 2},
        f"{WORKERS_FIELD}.dynamicAllocation.maxExecutors",
        "must not be smaller than minExecutors",
    ),
    Wrong(
        "spec/workers/secretVolumes",
        [{"secretName": "s", "mountPath": "etc"}],
        f"{WORKERS_FIELD}.secretVolumes[0].mountPath",
        "must be an absolute path",
    ),
    Wrong("spec/workers/tolerations", [{"effect": "Never"}], f"{WORKERS_FIELD}.tolerations[0].effect", "NoExecute"),
    Wrong(f"{LOGS}/volume", {"subPath": "a"}, f"{LOGS_FIELD}.volume.claimName", "Required value", "is required"),
    Wrong(f"{LOGS}/volume", {"claimName": "c", "subPath": "/a"}, f"{LOGS_FIELD}.volume.subPath", "must be relative"),
    Wrong(f"{LOGS}/volume", {"claimName": "c", "subPath": "../a"}, f"{LOGS_FIELD}.volume.subPath", "not contain '..'"),
    Wrong("spec/workers/sparkConf", {"driver.memory": "2g"}, "spec.workers.sparkConf", "must begin with 'spark.'"),
    Wrong("spec/workers/sparkConf", {"spark.master": "x"}, "spec.workers.sparkConf", "set workers.sparkMaster instead"),
    *(
        Wrong("spec/workers/sparkConf", {key: "x"}, "spec.workers.sparkConf", "only settings of memory, cores")
        for key in (
            "spark.kubernetes.executor.podTemplateFile",
            "spark.kubernetes.executor.secrets.password",
            "spark.jars",
            "spark.jars.packages",
            "spark.driver.extraJavaOptions",
            "spark.executor.defaultJavaOptions",
            "spark.pyspark.python",
            "spark.kubernetes.container.image",
            "spark.kubernetes.namespace",
            "spark.executor.resource.gpu.discoveryScript",
            "spark.hadoop.fs.s3a.access.key",
        )
    ),
    *(
        Wrong("spec/workers", {"launcher": "process"} | member, f"{WORKERS_FIELD}.{next(iter(member))}", PODS_ADVICE)
        for member in (
            {"image": "worker:1"},
            {"imagePullPolicy": "Always"},
            {"imagePullSecrets": [{"name": "registry"}]},
            {"serviceAccountName": "mine"},
            {"executor": {"instances": 1}},
            {"dynamicAllocation": {"maxExecutors": 2}},
            {"nodeSelector": {"disk": "fast"}},
            {"tolerations": [{"operator": "Exists"}]},
            {"priorityClassName": "batch"},
            {"queueName": "compaction"},
            {"envFromSecrets": [{"name": "credentials"}]},
            {"secretVolumes": [{"secretName": "s", "mountPath": "/etc/s"}]},
        )
    ),
    Wrong("spec/cleanup/delay", "a while", "spec.cleanup.delay", DURATION_ADVICE),
    Wrong("spec/suspend", "yes", "spec.suspend", "boolean"),
    Wrong("metadata/name", "x" * 64, "", "choose a shorter name"),
)

SOURCES = "spec/sources/segmentLog"
SOURCES_FIELD = "spec.sources.segmentLog"

WRONG_JOBS = (
    Wrong("spec/policyRef", ABSENT, "spec.policyRef", "Required value", "required"),
    Wrong("spec/policyRef", {"name": ""}, "spec.policyRef.name", "at least 1 char"),
    Wrong("spec/kind", "LogRewrite", "spec.kind", "SegmentRewrite"),
    Wrong("spec/kind", "BlockRewrite", "spec.sources", "needs sources.blocks", "needs sources.segmentLog"),
    Wrong("spec/sources", {}, "spec.sources", "needs sources.segmentLog: the path of a log"),
    Wrong(f"{SOURCES}/path", "ra/a", f"{SOURCES_FIELD}.path", "must be an absolute path"),
    Wrong(f"{SOURCES}/path", "/data/\0", f"{SOURCES_FIELD}.path", "must not contain a NUL character"),
    Wrong(f"{SOURCES}/groups", [], SOURCES_FIELD, "give the job something to do"),
    Wrong(f"{SOURCES}/groups", [{"segments": ["1.segment"]}], f"{SOURCES_FIELD}.groups[0].segments[0]", "16 digits"),
    Wrong(f"{SOURCES}/groups", [{"segments": []}], f"{SOURCES_FIELD}.groups[0].segments", "at least 1 item"),
    Wrong(
        f"{SOURCES}/groups",
        [{"segments": [SEGMENT_2, SEGMENT_1]}],
        f"{SOURCES_FIELD}.groups[0].segments",
        "list the segments of a group in ascending order, each once",
    ),
    Wrong(
        f"{SOURCES}/groups",
        [{"segments": [f"{number:016d}.segment" for number in range(9)]}],
        f"{SOURCES_FIELD}.groups[0].segments",
        "at most 8 items",
    ),
    Wrong(f"{SOURCES}/obsolete", ["../../etc/passwd"], f"{SOURCES_FIELD}.obsolete[0]", "16 digits"),
    Wrong(f"{SOURCES}/clump", {"ownerStopped": True}, f"{SOURCES_FIELD}.clump", "leave groups and obsolete out"),
    Wrong(
        SOURCES,
        {"path": "/data/ra/a", "clump": {"ownerStopped": False}},
        f"{SOURCES_FIELD}.clump.ownerStopped",
        "stop the process that owns the log",
    ),
    Wrong(
        SOURCES,
        {"path": "/data/ra/a", "clump": {}},
        f"{SOURCES_FIELD}.clump.ownerStopped",
        "Required value",
        "required",
    ),
    Wrong(
        SOURCES,
        {"path": "/data/ra/a", "clump": {"ownerStopped": True, "shorterThan": 1}},
        f"{SOURCES_FIELD}.clump.shorterThan",
        "greater than or equal to 2",
    ),
    Wrong(f"{SOURCES}/snapshotIndex", -1, f"{SOURCES_FIELD}.snapshotIndex", "greater than or equal to 0"),
    Wrong("spec/level", 101, "spec.level", "less than or equal to 100"),
    Wrong("metadata/name", "x" * 64, "", "metadata.name must have at most 63 characters"),
    Wrong("spec/estimatedBytes", "1Gi", "spec.estimatedBytes", "integer"),
)

BLOCK_1, BLOCK_2 = "01ARZ3NDEKTSV4RRFFQ69G5FAV", "01ARZ3NDEKTSV4RRFFQ69G5FAW"


def block_store(**member: Any) -> dict[str, Any]:
    """Which store, as policies and jobs say it."""
    return {"url": "s3://lake/blocks", "index": {"secretName": "index"}} | member


def block_policy_object(name: str = "blocks", **spec: Any) -> dict[str, Any]:
    """The smallest policy of a block store."""
    return policy_object(name, **{"store": {"blockStore": block_store()}} | spec)


def block_job_object(name: str = "blocks-1", **spec: Any) -> dict[str, Any]:
    """A job of blocks as the planner makes it."""
    batch = {"tenant": "t", "shard": 0, "batch": f"t/0/L0/{BLOCK_1}", "blocks": [BLOCK_1, BLOCK_2]}
    sources = {"blocks": {"store": block_store()} | batch}
    return job_object(name, policy="blocks", **{"kind": "BlockRewrite", "sources": sources} | spec)


BLOCKS = "spec/store/blockStore"
BLOCKS_FIELD = "spec.store.blockStore"
LEVEL_FIELD = f"{BLOCKS_FIELD}.levels[0]"


def _level(**member: Any) -> list[dict[str, Any]]:
    return [{"maxBlocks": 20, "maxAge": "36s"} | member]


WRONG_BLOCK_POLICIES = (
    Wrong("spec/store/segmentLogs", {"root": "/data/ra"}, "spec.store", "set exactly one store: segmentLogs or block"),
    *(
        Wrong(f"{BLOCKS}/url", url, f"{BLOCKS_FIELD}.url", "credentials belong in credentialsSecretName")
        for url in ("http://host/bucket", "s3://", "s3://key:secret@host/bucket", "s3://bucket?region=x", "bucket")
    ),
    Wrong(f"{BLOCKS}/url", "file:///data/../etc", f"{BLOCKS_FIELD}.url", "must not contain '..'"),
    *(
        Wrong(f"{BLOCKS}/url", url, f"{BLOCKS_FIELD}.url", "must not escape letters, digits")
        for url in ("file:///%70roc/self/root/b", "file:///a/%2e%2E/etc", "file:///a%2F..%2fb")
    ),
    Wrong(f"{BLOCKS}/url", "file:///proc/self/root/b", f"{BLOCKS_FIELD}.url", "must not lead through /proc"),
    Wrong(f"{BLOCKS}/index", ABSENT, f"{BLOCKS_FIELD}.index", "Required value", "is required"),
    Wrong(f"{BLOCKS}/index", {"key": "url"}, f"{BLOCKS_FIELD}.index.secretName", "Required value", "is required"),
    Wrong(f"{BLOCKS}/index", {"secretName": ""}, f"{BLOCKS_FIELD}.index.secretName", "at least 1 char"),
    Wrong(
        f"{BLOCKS}/index",
        {"secretName": "../index"},
        f"{BLOCKS_FIELD}.index.secretName",
        "must be the name of a Secret",
    ),
    Wrong(
        f"{BLOCKS}/index",
        {"secretName": "index", "key": "../url"},
        f"{BLOCKS_FIELD}.index.key",
        "must be a key of a Secret",
    ),
    Wrong(f"{BLOCKS}/credentialsSecretName", "a/b", f"{BLOCKS_FIELD}.credentialsSecretName", "must be the name of a"),
    Wrong(f"{BLOCKS}/levels", [], f"{BLOCKS_FIELD}.levels", "at least 1 item"),
    Wrong(f"{BLOCKS}/levels", _level() * 9, f"{BLOCKS_FIELD}.levels", "at most 8 items"),
    Wrong(f"{BLOCKS}/levels", _level(maxBlocks=1), f"{LEVEL_FIELD}.maxBlocks", "greater than or equal to 2"),
    Wrong(f"{BLOCKS}/levels", _level(maxBlocks=1001), f"{LEVEL_FIELD}.maxBlocks", "less than or equal to 1000"),
    Wrong(f"{BLOCKS}/levels", _level(maxAge="0s"), f"{LEVEL_FIELD}.maxAge", "must be longer than 0s, such as 36s"),
    Wrong(f"{BLOCKS}/levels", _level(maxAge="soon"), f"{LEVEL_FIELD}.maxAge", DURATION_ADVICE),
    Wrong(
        f"{BLOCKS}/levels",
        [*_level(maxAge="36s"), *_level(maxAge="12m"), *_level(maxAge="90s")],
        f"{BLOCKS_FIELD}.levels",
        "maxAge must not fall from one level to the next",
    ),
    Wrong(
        f"{BLOCKS}/levels",
        [*_level(maxAge="1d1h"), *_level(maxAge="2d"), *_level(maxAge="47h59m")],
        f"{BLOCKS_FIELD}.levels",
        "maxAge must not fall from one level to the next",
    ),
    Wrong(f"{BLOCKS}/thresholds", {"debtBlocks": -1}, f"{BLOCKS_FIELD}.thresholds.debtBlocks", "or equal to 0"),
    Wrong(f"{BLOCKS}/levels", [{"maxBlocks": 2}], f"{LEVEL_FIELD}.maxAge", "Required value", "is required"),
    Wrong(f"{BLOCKS}/levels", _level(maxBytes=0), f"{LEVEL_FIELD}.maxBytes", "must be more than 0, such as 512Mi"),
    Wrong(f"{BLOCKS}/span", "0s", f"{BLOCKS_FIELD}.span", "must be longer than 0s"),
    Wrong(f"{BLOCKS}/mergeMemory", "0Mi", f"{BLOCKS_FIELD}.mergeMemory", "must be more than 0, such as 512Mi"),
    Wrong(f"{BLOCKS}/deduplicate", {"columns": []}, f"{BLOCKS_FIELD}.deduplicate.columns", "at least 1 item"),
    Wrong(f"{BLOCKS}/retention", {"default": "0h"}, f"{BLOCKS_FIELD}.retention.default", "must be longer than 0s"),
    Wrong(
        f"{BLOCKS}/retention",
        {"tenants": [{"tenant": "", "keep": "1h"}]},
        f"{BLOCKS_FIELD}.retention.tenants[0].tenant",
        "at least 1 char",
    ),
)

_JOB_BLOCKS = "spec/sources/blocks"
_JOB_BLOCKS_FIELD = "spec.sources.blocks"

WRONG_BLOCK_JOBS = (
    Wrong(
        "spec/sources", {}, "spec.sources", "needs sources.blocks: store, tenant, shard, batch and the ids of blocks"
    ),
    Wrong("spec/kind", "SegmentRewrite", "spec.sources", "needs sources.segmentLog: the path of a log"),
    Wrong(f"{_JOB_BLOCKS}/store", ABSENT, f"{_JOB_BLOCKS_FIELD}.store", "Required value", "Field required"),
    Wrong(
        f"{_JOB_BLOCKS}/store/url",
        "s3://key:secret@host/bucket",
        f"{_JOB_BLOCKS_FIELD}.store.url",
        "credentials belong in credentialsSecretName",
    ),
    Wrong(f"{_JOB_BLOCKS}/store/index", ABSENT, f"{_JOB_BLOCKS_FIELD}.store.index", "Required value", "Field required"),
    Wrong(
        f"{_JOB_BLOCKS}/batch", "t/one/L0/" + BLOCK_1, f"{_JOB_BLOCKS_FIELD}.batch", "must be <tenant>/<shard>/L<level>"
    ),
    Wrong(f"{_JOB_BLOCKS}/batch", "t/0/L0/mine", f"{_JOB_BLOCKS_FIELD}.batch", "must be <tenant>/<shard>/L<level>"),
    Wrong(f"{_JOB_BLOCKS}/blocks", [], f"{_JOB_BLOCKS_FIELD}.blocks", "at least 1 item"),
    Wrong(f"{_JOB_BLOCKS}/blocks", [BLOCK_2, BLOCK_1], f"{_JOB_BLOCKS_FIELD}.blocks", "in ascending order"),
    Wrong(f"{_JOB_BLOCKS}/blocks", [BLOCK_1.lower()], f"{_JOB_BLOCKS_FIELD}.blocks[0]", "the id of a block, a ULID"),
    Wrong(f"{_JOB_BLOCKS}/tenant", "", f"{_JOB_BLOCKS_FIELD}.tenant", "at least 1 char"),
    Wrong(f"{_JOB_BLOCKS}/tenant", "a\nb", f"{_JOB_BLOCKS_FIELD}.tenant", "must not contain control characters"),
    Wrong(f"{_JOB_BLOCKS}/tenant", "ü" * 34, f"{_JOB_BLOCKS_FIELD}.tenant", "more than 200 bytes in paths"),
    Wrong(f"{_JOB_BLOCKS}/shard", -1, f"{_JOB_BLOCKS_FIELD}.shard", "greater than or equal to 0"),
    Wrong(f"{_JOB_BLOCKS}/shard", 2**31, f"{_JOB_BLOCKS_FIELD}.shard", "less than or equal to 2147483647"),
)


# Policies and jobs of staging areas as users and the planner write them, and wrong ones.

COMMIT: Final = "c" * 64
BASE: Final = "b" * 64
TOKENS: Final = ("lake-main:2", "lake-main:1")


def staging_area(**member: Any) -> dict[str, Any]:
    """The smallest reference to a repository."""
    return {"repository": "lake", "kv": {"secretName": "kv"}} | member


def staging_policy_object(name: str = "staging", **spec: Any) -> dict[str, Any]:
    """The smallest policy of a staging area."""
    return policy_object(name, **{"store": {"stagingArea": staging_area()}} | spec)


def staging_job_object(name: str = "staging-1", **spec: Any) -> dict[str, Any]:
    """A job of a branch as the planner makes it."""
    sources = {"metarange": {"store": staging_area(), "branch": "main", "commit": COMMIT, "tokens": list(TOKENS)}}
    return job_object(name, policy="staging", **{"kind": "MetarangeRewrite", "sources": sources} | spec)


_AREA: Final = "spec/store/stagingArea"
_FIELD: Final = "spec.store.stagingArea"
_THRESHOLDS: Final = f"{_FIELD}.thresholds"

WRONG_STAGING_POLICIES: Final = (
    Wrong("spec/store/segmentLogs", {"root": "/data/ra"}, "spec.store", "set exactly one store: segmentLogs or block"),
    *(
        Wrong(f"{_AREA}/repository", name, f"{_FIELD}.repository", "must be the name of a repository")
        for name in ("Lake", "ab", "-lake", "lake/main")
    ),
    Wrong(f"{_AREA}/repository", ABSENT, f"{_FIELD}.repository", "Required value", "is required"),
    Wrong(f"{_AREA}/kv", ABSENT, f"{_FIELD}.kv", "Required value", "is required"),
    Wrong(f"{_AREA}/kv", {"secretName": "../kv"}, f"{_FIELD}.kv.secretName", "must be the name of a Secret"),
    Wrong(f"{_AREA}/table", "kv;drop", f"{_FIELD}.table", "must be the name of a table"),
    Wrong(f"{_AREA}/include", [], f"{_FIELD}.include", "at least 1 item"),
    Wrong(f"{_AREA}/exclude", ["a/b"], f"{_FIELD}.exclude[0]", "must be a pattern of names of branches"),
    Wrong(f"{_AREA}/thresholds", {"tombstones": 0}, f"{_THRESHOLDS}.tombstones", "greater than or equal to 1"),
    Wrong(f"{_AREA}/thresholds", {"stagedBytes": 0}, f"{_THRESHOLDS}.stagedBytes", "must be more than 0"),
    Wrong(f"{_AREA}/thresholds", {"maxAge": "0s"}, f"{_THRESHOLDS}.maxAge", "must be longer than 0s"),
    Wrong(f"{_AREA}/lakefs", {"leastTokens": 1}, f"{_FIELD}.lakefs.leastTokens", "greater than or equal to 2"),
    Wrong(f"{_AREA}/lakefs", {"quiet": "0s"}, f"{_FIELD}.lakefs.quiet", "must be longer than 0s"),
)

_JOB: Final = "spec/sources/metarange"
_JOB_FIELD: Final = "spec.sources.metarange"

WRONG_STAGING_JOBS: Final = (
    Wrong("spec/sources", {}, "spec.sources", "needs sources.metarange: store, branch, commit and the names of tokens"),
    Wrong(f"{_JOB}/store", ABSENT, f"{_JOB_FIELD}.store", "Required value", "Field required"),
    Wrong(f"{_JOB}/commit", "main", f"{_JOB_FIELD}.commit", "must be the id of a commit"),
    Wrong(f"{_JOB}/base", "main", f"{_JOB_FIELD}.base", "must be the id of a metarange"),
    Wrong(f"{_JOB}/tokens", [], f"{_JOB_FIELD}.tokens", "at least 1 item"),
)

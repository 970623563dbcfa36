#!/bin/sh
# What a container of the worker image runs, in the words of Spark's own images:
#
#   executor ...   an executor that a driver asked Kubernetes for; SPARK_* variables say of which driver
#   driver ...     a SparkApplication's driver (its operator submits in cluster mode); ours runs without spark-submit, see
#                  worker.py; any other main file goes the ordinary way
#   anything else  that command: `compactor worker ...` in a pod of our own
set -eu

# Options for the JVMs of executors; a driver takes its own from the worker's code.
share_classes() {
    if [ -r "${COMPACTION_CLASS_ARCHIVE:-}" ]; then
        echo "-XX:SharedArchiveFile=$COMPACTION_CLASS_ARCHIVE -Xlog:cds=off -Xlog:cds+dynamic=off"
    fi
}

case "${1:-}" in
executor)
    shift
    # In the order of their numbers: a later option wins over an earlier one.
    set --
    number=0
    while value=$(printenv "SPARK_JAVA_OPT_$number"); do
        set -- "$@" "$value"
        number=$((number + 1))
    done
    # Small heaps do best with the simplest collector; two in one command line end the JVM, so a chosen one is left alone.
    case "$*" in
    *-XX:+Use*GC*) ;;
    *) set -- -XX:+UseSerialGC "$@" ;;
    esac
    # The class path is the driver's, letter by letter: an archive of classes holds for that one only.
    # Not `exec`: before an executor is stopped, Spark's hook (decommission.sh) waits in this container for the JVM's end. If
    # the container ended with it, the hook would be killed, and each normal end be an Event FailedPreStopHook.
    # A signal may come before there is a JVM to hand it to: it is kept for it.
    jvm="" stopped=""
    trap 'stopped=yes; [ -z "$jvm" ] || kill -s TERM "$jvm" || :' TERM
    # shellcheck disable=SC2046
    "$JAVA_HOME/bin/java" -XX:-UsePerfData -XX:TieredStopAtLevel=1 $(share_classes) "$@" \
        "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
        -cp "${SPARK_CLASSPATH:+$SPARK_CLASSPATH:}$SPARK_HOME/conf/:$SPARK_HOME/jars/*" \
        org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
        --driver-url "$SPARK_DRIVER_URL" \
        --executor-id "$SPARK_EXECUTOR_ID" \
        --cores "$SPARK_EXECUTOR_CORES" \
        --app-id "$SPARK_APPLICATION_ID" \
        --hostname "$SPARK_EXECUTOR_POD_IP" \
        --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
        --podName "$SPARK_EXECUTOR_POD_NAME" &
    jvm=$!
    [ -z "$stopped" ] || kill -s TERM "$jvm" || :
    code=0
    wait "$jvm" || code=$?
    while kill -0 "$jvm" 2>/dev/null; do # the wait was interrupted by the signal
        code=0
        wait "$jvm" || code=$?
    done
    # A hook that waits sees the end, and one that begins just now (the driver deletes what it has stopped) finds nothing.
    trap '' TERM
    sleep 2
    exit "$code"
    ;;
driver)
    shift
    for argument; do
        case "$argument" in
        */opt/compaction/worker.py)
            exec /opt/venv/bin/python /opt/compaction/worker.py driver "$@"
            ;;
        esac
    done
    exec "$SPARK_HOME/bin/spark-submit" --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" \
        --conf "spark.executorEnv.SPARK_DRIVER_POD_IP=$SPARK_DRIVER_BIND_ADDRESS" --deploy-mode client "$@"
    ;;
*)
    exec "$@"
    ;;
esac

#!/bin/sh
# What Spark has an executor's container do before it is stopped (spark.kubernetes.decommission.script): the executor
# tells its driver that it goes, takes no new tasks, finishes those it has, and ends. The kubelet's grace bounds that.
set -u
for process in "${1:-/proc}"/[0-9]*; do
    case "$(tr '\0' ' ' 2>/dev/null <"$process/cmdline")" in
    *org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend*)
        kill -s PWR "${process##*/}"
        while [ -d "$process" ] && ! grep -q '^State:.Z' "$process/status" 2>/dev/null; do
            sleep 0.2
        done
        ;;
    esac
done
exit 0

module compaction.dev/tests/kubeflow-spark-operator

go 1.25

require github.com/kubeflow/spark-operator/v2 v2.5.2

"""`compactor staging`: staging areas without Kubernetes and without Spark."""

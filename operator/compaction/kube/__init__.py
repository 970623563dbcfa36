"""The operator on a cluster: it observes the API server, lets `reconcile` decide, and carries the decisions out."""

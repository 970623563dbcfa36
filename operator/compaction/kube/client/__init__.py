"""The client of the Kubernetes API: connection, exchange, typed verbs, and the kinds that they are for."""

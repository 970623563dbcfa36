"""The common part of HTTP endpoints: those for writers, each of one kind of store, and that of participants of a
catalog.

An endpoint knows its store or catalog as a library. Who a bearer token belongs to it asks through a port that `kube`
implements, so it runs without Kubernetes too, with a shared secret.
"""

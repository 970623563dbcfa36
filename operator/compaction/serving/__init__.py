"""HTTP endpoints: for writers, each of one kind of store, and of participants of a catalog. What they share, and a
package for each.

An endpoint knows its store or catalog as a library. Who a bearer token belongs to it asks through a port that `kube`
implements, so it runs without Kubernetes too, with a shared secret.
"""

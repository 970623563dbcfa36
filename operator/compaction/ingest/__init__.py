"""The HTTP endpoint where writers register the blocks they have uploaded, and readers list the live ones.

Knows the block store as a library. Who a bearer token belongs to it asks through a port that `kube` implements, so it
runs without Kubernetes too, with a shared secret.
"""

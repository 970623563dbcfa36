"""One machine without a cluster: runs of a policy, a real local control plane, and demonstrations on both."""

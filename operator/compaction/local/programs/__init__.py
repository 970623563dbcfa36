"""Where the programs of the control plane and of the tests come from: found, cached, downloaded, or built."""

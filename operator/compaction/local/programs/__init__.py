"""The sources of the programs of the control plane and of the tests: found, cached, downloaded, or built."""

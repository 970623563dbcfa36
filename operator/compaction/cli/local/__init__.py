"""Commands for one machine: `run`, the local control plane, demo, drill and images."""

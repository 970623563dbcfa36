"""Documents in YAML as people write them for kubectl: policies and Secrets."""

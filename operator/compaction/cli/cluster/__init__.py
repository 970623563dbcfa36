"""Commands that talk to a cluster, or run in one: what people ask of policies and jobs, operator and worker."""

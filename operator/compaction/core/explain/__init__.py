"""States and reasons of policies and jobs, in sentences."""

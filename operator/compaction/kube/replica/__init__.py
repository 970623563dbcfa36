"""One replica of the operator: its process, its probes, and its term of leadership."""

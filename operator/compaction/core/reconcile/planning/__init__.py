"""The planning of a policy: its times, what its planner may choose from, and how a plan becomes jobs."""

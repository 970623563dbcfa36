"""When a policy plans, what its planner may choose from, and how a plan becomes jobs."""

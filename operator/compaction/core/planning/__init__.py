"""From candidates to a plan, and from waiting jobs to assignments: decisions from plain data, clock passed in."""

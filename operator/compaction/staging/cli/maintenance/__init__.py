"""The commands that keep a staging area small and sound: inspect, plan, compact, sweep, verify."""

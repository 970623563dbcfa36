"""Processes that are started here: identified without doubt, ended with their parent, one at a time."""

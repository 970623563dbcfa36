"""The operations of people and programs on a repository: read, write, commit, merge, reset.

docs/design/staging-areas.md#flows.
"""

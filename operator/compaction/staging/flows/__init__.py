"""What people and programs do with a repository: read, write, commit, merge, reset.

docs/design/staging-areas.md#flows.
"""

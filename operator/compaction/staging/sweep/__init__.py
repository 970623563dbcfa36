"""Cleanup: tokens that no branch has, and objects that no tree has, after the grace.

docs/design/staging-areas.md#sweep.
"""

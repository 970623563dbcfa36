"""Versioned catalogs: immutable descriptors, the binary form of their update log, and the changes between versions.

A library of its own: neither Kubernetes nor Spark. Formats and rules: docs/design/catalogs.md.
"""

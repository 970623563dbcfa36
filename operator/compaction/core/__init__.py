"""Decisions about every kind of store, from plain data with a clock passed in; no module here names a kind.

`kind` is the contract of a kind (`Kind`), `doors` where its code is, by dotted names that are resolved late; `planning`
decides what to compact, `reconcile` what to do next, `explain` says it in sentences. All kinds stand in `registry`.
"""

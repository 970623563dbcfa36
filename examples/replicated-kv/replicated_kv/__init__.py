"""A replicated key-value store whose values stay in the log: an example of an owner of segment logs.

Start with `machine` (what an entry means), then `replica` (one member's log), `leader`, `member`, `client`.
"""

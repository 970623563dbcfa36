"""Checks of a directory of logs: facts read without a lock, the rules of its owner, and pure checks of both.

`reading` reads facts, `checks` and `growth` are pure over them, `all_checks` is all of it, with every payload.
"""

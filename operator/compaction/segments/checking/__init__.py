"""What a directory of logs shows of its owner and its state: facts read without a lock, rules, and pure checks of both.

`reading` reads facts, `checks` and `growth` are pure over them, `all_checks` is all of it, with every payload.
"""

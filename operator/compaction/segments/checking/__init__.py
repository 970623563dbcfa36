"""What a directory of logs shows of its owner and its state: facts read without a lock, rules, and pure checks of both.

`reading` reads facts, `checks` and `growth` are pure over them, `payloads` reads every payload, `run` is all of it.
"""

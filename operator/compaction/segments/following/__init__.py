"""Following a directory of logs: what is written, rolled, compacted and live, change by change. Reads only, no lock.

`changes` compares two listings (pure), `follower` makes them and reads what is appended to the write-ahead log.
"""

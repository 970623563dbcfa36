"""The demo of segment logs: logs that three processes write while they are compacted, and one that is damaged; owners
and a worker are killed, and the proof that nothing was lost.
"""

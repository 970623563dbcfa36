"""The worker: its loop, its leases and the heartbeat that keeps them, its Spark session, and the parts of a rewrite
that all kinds share; `loop` is the door.
"""

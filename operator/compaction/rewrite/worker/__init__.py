"""The worker: its loop, its leases and the heartbeat that keeps them; `loop` is the door."""

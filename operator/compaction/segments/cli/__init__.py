"""`compactor segments`: commands over segment logs; `commands` is the group."""

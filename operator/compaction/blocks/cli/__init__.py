"""`compactor blocks`: commands over block stores; `commands` is the group."""

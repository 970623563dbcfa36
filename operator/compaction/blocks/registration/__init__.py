"""From an object to the block that it is, as the index registers it."""

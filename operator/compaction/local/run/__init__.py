"""`compactor run`: a policy compacted in this process, once or until it is stopped."""

"""Which segments of a log are rewritten together, which are dropped, and why the rest stays: pure decisions."""

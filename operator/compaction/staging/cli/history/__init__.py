"""`compactor staging exec`: histories of operations, one per line, with one result for each."""

"""`compactor segments exec`: histories of operations on a system of logs, with one result for each."""

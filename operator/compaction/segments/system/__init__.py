"""A system of logs: one directory, one write-ahead log, many logs that are written and read here."""

"""Entries of a log that are in no segment yet: sequences of indexes, tables, and how newer tables hide older ones."""

"""The index rebuilt from the objects: which blocks exist, and which of them live."""

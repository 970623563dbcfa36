"""The contents of a catalog: immutable descriptors, entries that change them, and versions that share what is equal."""

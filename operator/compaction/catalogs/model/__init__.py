"""What a catalog holds: immutable descriptors, entries that change them, and versions that share what is equal."""

"""What the files of a log hold, byte for byte as Ra writes them: segments, terms, checksums, names."""

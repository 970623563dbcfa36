"""The content of a log's files, byte for byte as Ra writes them: segments, terms, checksums, names."""

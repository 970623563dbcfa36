"""CatalogCompaction: which catalog is compacted, who takes part, and what came of it."""

"""What a CatalogCompaction does and waits for, in sentences."""

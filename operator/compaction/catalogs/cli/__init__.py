"""`compactor catalogs`: versioned catalogs, their values and histories, without Kubernetes."""

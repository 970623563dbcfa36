"""The rewrite of groups of segments into new files, which nothing refers to before their commit."""

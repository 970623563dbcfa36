"""The installation of a snapshot in another log: its live entries first, sparsely, then the snapshot itself."""

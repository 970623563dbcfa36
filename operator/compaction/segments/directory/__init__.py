"""A log's directory on the file system: its system calls, lock, listing and owner, and what goes wrong with them."""

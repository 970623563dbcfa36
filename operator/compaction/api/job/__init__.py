"""CompactionJob: its spec and its status."""

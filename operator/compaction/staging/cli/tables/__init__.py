"""`compactor staging sst`: ranges and metaranges as files, and as lines of JSON."""

"""What a staging area's files and messages hold, byte for byte as lakeFS writes them (docs/design/staging.md)."""

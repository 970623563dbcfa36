"""The content of a staging area's files and messages, byte for byte as lakeFS writes them (docs/design/staging.md)."""

"""Alembic's scripts, part of the package: an installed one brings its schema along. Run by `schema.ensure_schema`."""

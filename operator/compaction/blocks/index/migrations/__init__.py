"""Alembic's scripts, part of the package: an installed one brings its schema along. `ensure_schema` of the
store has `upgrading` run them; `indexes` completes the tables that they are compared with.
"""

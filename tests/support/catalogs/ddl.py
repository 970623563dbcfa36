"""DDL as commands read it."""

THREE_NAMES = """
- {type: CREATE_ZONE, zone: FAST, storageProfiles: [default], partitions: 1, replicas: 1}
- type: CREATE_TABLE
  schema: PUBLIC
  table: T0
  zone: FAST
  columns: [{name: ID, type: INT32, nullable: false}]
  pk: {columns: [ID]}
- {type: RENAME_TABLE, schema: PUBLIC, table: T0, newName: T1}
- {type: RENAME_TABLE, schema: PUBLIC, table: T1, newName: T2}
- {type: RENAME_TABLE, schema: PUBLIC, table: T2, newName: T3}
"""
"""A table of one partition, renamed three times."""

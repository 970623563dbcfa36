"""The reconciler of catalogs: (object, what work has found, clock) -> decision. Others import `catalog`, `observations`
for what it reads, `actions` for what it decides.
"""

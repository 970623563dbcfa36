"""What the core may know about a kind of store: one object per kind (`Kind`), and the registry of them.

* `kinds.kind`: the contract; `kinds.registry`: all kinds, found by a store or a job, and `register` for one that lives
  elsewhere.
* `kinds.segments`, `kinds.blocks`, `kinds.staging`: the kinds that ship, each with its reasons and words. Only the
  kind's own rooms (`Doors.rooms`) import them.
* `kinds.doors`, `kinds.commands`: where the code of a kind is, by dotted names that are resolved late. They import
  nothing heavy: `compactor --help` reads them.
"""

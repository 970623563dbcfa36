"""The kind of segment logs. `registry` imports `kind`; the kind's own rooms import `reasons`."""

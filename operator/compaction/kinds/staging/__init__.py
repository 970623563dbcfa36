"""The kind of staging areas. `registry` imports `kind`; the kind's own rooms import `measures`, `reasons` and `work`."""

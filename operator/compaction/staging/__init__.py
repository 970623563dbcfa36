"""The kind of staging areas. `registry` imports `kind`; the kind's own rooms `measures`, `reasons` and `work`."""

"""The kind of block stores. `registry` imports `kind`; the kind's own rooms import `reasons` and `work`."""

"""The update log of a catalog: one port, kept in etcd or, for simulations, in memory
(docs/design/catalogs.md#update-log).
"""

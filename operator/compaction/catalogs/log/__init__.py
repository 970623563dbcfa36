"""The update log of a catalog: one port, kept in etcd or, for simulations, in memory
(docs/design/catalogs.md#update-log).

`port` is what a catalog needs, `etcd_log.EtcdUpdateLog` and `memory.MemoryUpdateLog` have it; `etcd` is the client.
"""

"""The update log of a catalog: one port, kept in etcd (docs/design/catalogs.md#update-log).

`port` is what a catalog needs, `etcd_log.EtcdUpdateLog` has it; `etcd` is the client.
"""

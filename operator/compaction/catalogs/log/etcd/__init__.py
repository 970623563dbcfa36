"""A narrow client of etcd: ranges, transactions, watches and the status, over the JSON gateway that every member serves
(docs/design/catalogs.md#client-of-etcd).

`wire` has what the log needs and how to reach the members, `gateway.GatewayClient` is the one implementation.
"""

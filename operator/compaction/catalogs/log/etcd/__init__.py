"""A narrow client of etcd: ranges, transactions, watches and the status, over the JSON gateway that every member serves
(docs/design/catalogs.md#client-of-etcd).

`port` is what the log needs, `client.GatewayClient` the one implementation, `settings` how to reach the members.
"""

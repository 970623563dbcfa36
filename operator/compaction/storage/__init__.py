"""The common base of every kind of store: the contract of an adapter, object stores, SQL databases, Secrets, a pace."""

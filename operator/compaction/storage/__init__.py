"""What every kind of store needs: the contract of an adapter, object stores, SQL databases, Secrets, a pace."""

"""The reconcile of a policy: what is observed and the clock go in, a decision comes out. No I/O."""

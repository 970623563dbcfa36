"""The index of a block store: which blocks there are, which of them wait for compaction, who may replace them, and what
waits for its deletion. SQLite for one machine, PostgreSQL for real; the same tables, statements and tests.

What it promises, in the order in which the modules rely on it:

* `tables`: changes are made one after the other (each begins by locking one row), so what a change has checked still
  holds when it commits; a reader sees the state after some change, never between two. Each change is one transaction
  and may be repeated when its answer was lost.
* `registering`, `live_blocks`, `queued`: a block is live from its registration until its replacement or expiry, and
  every live block that is not quarantined waits in the queue, in the order of arrival. There is no second list that
  could disagree.
* `claims`, `registering`: a block belongs to at most one job; a job's blocks are replaced at most once, by the attempt
  that holds the newest token, and only while all of them are live.
* `tombstones`, `queued`: nothing live is deleted, and nothing is forgotten before its
  deletion was confirmed.

Times are epoch microseconds (UTC), given by the caller.
"""

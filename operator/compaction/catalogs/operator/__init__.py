"""Carries out what `catalogs/compaction` decides: participants are found and asked on the loop, the log is read and
written in threads. Others import `controller`, also for one controller of policies and catalogs.
"""

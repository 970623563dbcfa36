"""Carries out what `catalogs/compaction` decides: participants are found and asked on the loop, the log is read and
written in threads. Others import `controller`, and `dispatch` for one controller of policies and catalogs.
"""

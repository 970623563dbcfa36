"""SegmentRewrite: from a job to the commits of one log, and the rewrite of groups of segments into new files, which
nothing refers to before their commit; `rewriter` is the door.
"""

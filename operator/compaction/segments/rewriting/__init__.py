"""SegmentRewrite: from a job to the commits of one log; `rewriter` is the door."""

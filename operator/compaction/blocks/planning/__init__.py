"""The queue of blocks that wait for compaction, and the batches they become: pure decisions, clock passed in."""

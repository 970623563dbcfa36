"""The merge: sorted Parquet files become one, in bounded memory, without a sort of the whole.

Plain pyarrow and numpy, so that it runs the same in a Spark task, in a thread and in a test.
"""

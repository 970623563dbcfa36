"""What a block's Parquet file says of itself: its footer, our metadata in it, and its columns of time."""

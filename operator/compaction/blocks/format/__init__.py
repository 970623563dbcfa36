"""The statements of a block's Parquet file about itself: its footer, our metadata in it, and its columns of time."""

"""From a rolled write-ahead log file to segments: which entries are kept, how they are appended, when the file goes."""

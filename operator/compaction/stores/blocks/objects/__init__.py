"""Objects in a store, whichever it is: S3, Google, Azure by URL, or a local folder."""

"""Objects in object storage, for every kind of store: S3, Google, Azure by URL, or a local folder."""

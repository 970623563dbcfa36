"""The rewrites of a job, and the worker and the Spark session that run them."""

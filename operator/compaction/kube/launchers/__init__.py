"""How workers are started: Spark applications, driver pods, or local processes."""

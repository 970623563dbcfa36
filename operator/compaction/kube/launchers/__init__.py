"""The ways in which workers are started: Spark applications, driver pods, or local processes."""

"""The Spark application that runs the tasks: settings, start and end; `session` is the door."""

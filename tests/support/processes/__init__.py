"""The operator and its workers as processes: started as a person starts them, or with threads in the place of Spark."""

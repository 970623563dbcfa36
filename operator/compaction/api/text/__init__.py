"""Values as they are written in the resources and for people: durations, quantities, times, text from outside."""

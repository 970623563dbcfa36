"""The resources of the operator as models: what users write, what the operator answers, and the schemas of both."""

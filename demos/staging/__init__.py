"""The demonstration of staging areas: branches are written all the time, the operator compacts them, and a reader
proves stretch by stretch that each branch shows exactly what its writer was acknowledged.

It is an outsider as the other demos are: it talks to the API server with kubectl, writes and reads through the library
as an application would, and judges by its own model of each branch.
"""

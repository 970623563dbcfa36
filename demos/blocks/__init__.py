"""The demonstration of block stores: writers upload and register all the time, the operator merges, and a reader proves
at one instant after the other that every row is there once.

It is an outsider as the other demo is: it talks to the API server with kubectl, writes and reads through the library of
the store as an application would, and judges by what it has counted itself.
"""

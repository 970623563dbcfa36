"""What tests of several folders share, in rooms; here are the parts of the run itself, which pytest loads.

A helper with one user lives beside that user.
"""

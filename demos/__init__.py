"""The demonstration: from a policy applied with kubectl to reclaimed bytes, on a real control plane, with a proof.

It is an outsider: it makes logs with the segment library, talks to the API server with kubectl, and starts the
operator as a user would. What it claims at the end it has measured itself, before and after, from the files.
"""

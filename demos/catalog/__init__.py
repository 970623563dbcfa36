"""The demonstration of catalogs: a history of a thousand versions shrinks as processes let go of it, one after the
other, and a reader proves throughout that every version that is allowed reads as it was written.

It is an outsider as the other demos are: it talks to the API server with kubectl, to participants over HTTP, and judges
by the model that it has recorded while it wrote.
"""

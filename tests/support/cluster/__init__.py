"""The cluster: its API server and who asks it, objects and manifests to put there, and all of it as plain data."""

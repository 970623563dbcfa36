"""The operator's and the worker's image, built on this machine with docker or buildah."""

"""The fencing drill: proof on your own cluster that a worker which lost its lease does no harm."""

"""The HTTP endpoint where writers stage objects on branches of a staging area, list, compare, commit and reset them."""

"""Under which policy `compactor blocks` works: that of a file, or one made of the command's options.

`options` and `values` are what a command without a file takes instead, `made` is the policy of either, `rules` is what
it says of planning. The package itself imports none of them: only a command that needs a policy pays for its models.
"""

"""A package, so that what its files share (fixtures of scope `package`) goes with the last of them."""

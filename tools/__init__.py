"""Tools of a checkout, in no wheel and no image: a node, images, servers for tests and demos, generated files."""

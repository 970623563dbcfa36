"""The HTTP endpoint where writers register the blocks they have uploaded, and readers list the live ones."""

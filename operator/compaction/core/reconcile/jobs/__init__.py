"""The jobs of a policy: their lives, what ends them, and what is remembered of them."""

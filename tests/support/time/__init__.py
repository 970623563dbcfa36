"""Time: a clock that jumps or is wrong, and waiting for what becomes true."""

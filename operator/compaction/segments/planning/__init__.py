"""Pure decisions: the segments that are rewritten together or dropped, and the reason why the others stay."""

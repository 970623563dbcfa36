"""The commit of outputs into a log under its fence, and the recovery of commits that a crash left half-done."""

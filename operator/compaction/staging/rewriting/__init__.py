"""The rewriter of branches of staging areas: the driver cuts, tasks write and prove, the driver swaps the base."""

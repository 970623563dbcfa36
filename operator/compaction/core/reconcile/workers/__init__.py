"""The workers of a policy: which live, which jobs they get, and whether another one starts."""

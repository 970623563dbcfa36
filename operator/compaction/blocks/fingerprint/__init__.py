"""Fingerprints of rows: proof that a rewrite kept every one of them."""

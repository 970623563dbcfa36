"""Hostile bytes for every parser: targets, mutations, and the properties each answer must have."""

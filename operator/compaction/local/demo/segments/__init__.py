"""The demo of segment logs: four logs in files, one of them damaged, and the proof that nothing was lost."""

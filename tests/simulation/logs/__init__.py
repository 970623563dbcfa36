"""An owner and a compactor on one system of logs, on a disk that loses its power: seeded schedules, one thread."""

"""The parts of a policy's own account: its status, its Events, and what it waits for."""

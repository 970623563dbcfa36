"""What a policy says of itself: its status, its Events, and what it waits for."""

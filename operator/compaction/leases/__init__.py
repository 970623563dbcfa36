"""The election of the coordinator, silence measured on the local clock, and fencing tokens."""

"""CompactionPolicy: its spec, part by part, its status, and what each reason means for its conditions."""

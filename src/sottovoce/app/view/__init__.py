"""What operators see of a run: events, and a page, metrics and a log that are made of nothing else."""

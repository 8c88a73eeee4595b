"""`gradient`: noisy gradient sums."""

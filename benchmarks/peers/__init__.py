"""What a user could pick instead: libraries in environments of their own, and small baselines written here."""

"""Secure sums: parties open nothing but noisy sums over all of them. What it assumes: `proofs/aggregation.md`."""

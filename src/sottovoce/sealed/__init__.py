"""Sealed sums: parties open nothing but noisy sums over all of them. What it assumes: `proofs/sealing.md`."""

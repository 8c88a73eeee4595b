"""`cd`, `greedy-cd`: proximal coordinate descent."""

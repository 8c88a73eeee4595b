"""`one-shot`: one noisy sketched row of everybody."""

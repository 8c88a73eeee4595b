"""`score`: one noisy score of everybody, once."""

"""`frank-wolfe`: one signed feature a round, on the l1 ball."""

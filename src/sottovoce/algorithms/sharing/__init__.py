"""`admm`, `fdml`: parties with columns share scores of the records."""

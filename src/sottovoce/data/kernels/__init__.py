"""Every loop in numba."""

"""Prepared rows on a CUDA device, by CuPy; imported only where a device is asked for."""

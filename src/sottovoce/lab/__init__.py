"""Beside the library: audits, the papers' experiments, data sets, block-coordinate Frank-Wolfe."""

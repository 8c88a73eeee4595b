"""Declared bounds, prepared blocks, readers and data sets."""

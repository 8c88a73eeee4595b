"""Everything public about a run."""

"""Who holds what: parties, the coordinator, and joint predictions."""

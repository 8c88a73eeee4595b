"""Plans, parties, the coordinator and the frames between them."""

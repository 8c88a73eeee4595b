"""What the command line needs and a user of the library does not."""

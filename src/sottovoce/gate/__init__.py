"""The only way out of a party: queries, the gate, secure values, frames, and rows with noise that stay."""

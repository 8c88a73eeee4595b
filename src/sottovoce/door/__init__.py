"""The only way out of a party: queries, the gate, sealed values, frames, and rows with noise that stay."""

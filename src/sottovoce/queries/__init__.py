"""Queries that several algorithms ask. Each carries its bound; `door/proofs/queries.md` has the proofs."""

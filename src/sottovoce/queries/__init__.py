"""Queries that several algorithms ask. Each carries its bound; `gate/proofs/queries.md` has the proofs."""

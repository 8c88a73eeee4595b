"""The people that parties with columns have in common, in one order, before there is a plan (`sottovoce align`).

What leaves a party is made in `gate/intersection.py`. A plan over secure columns has the digest of the alignment, and a
party refuses another. Proof: `secure/proofs/alignment.md`.
"""

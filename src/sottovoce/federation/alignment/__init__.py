"""The people that parties with columns have in common, in one order, before there is a plan (`sottovoce align`).

    coordinator   passes envelopes on, and matches words where no party does
    party         with whom its holder allows it, who signed what, and the file of the common records

What leaves a party is made in `gate/intersection.py`. A plan over secure columns has the digest of the alignment, and a
party refuses another. Proof: `secure/proofs/alignment.md`.
"""

"""The people that parties with columns have in common, in one order, before there is a plan (`sottovoce align`).

    coordinator   passes boxes on, and matches words where no party does
    party         with whom its holder allows it, and who signed what
    file          what a party keeps of it: the places of the common records

What leaves a party is made in `door/intersection.py`. A plan over sealed columns has the digest of the alignment, and a
party refuses another. Proof: `sealed/proofs/alignment.md`.
"""

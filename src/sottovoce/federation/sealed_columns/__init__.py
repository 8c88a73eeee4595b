"""Sums over the records of parties that have columns: who says what, in which order.

    set-up     the holder of the labels sends the others the key of their boxes; each party sends its masked columns
    a sum      of what each party has by itself: one share of each
    products   shares of the Gram matrix, from the masked columns and what the dealer dealt
    a look-up  masked scores, then masked slopes, then shares of the sum

The coordinator asks, and each message names its stage:

    stage            the coordinator sends            a party answers with
    group            nothing, to who has the labels   the key of the parties' boxes, boxed for each other party
    columns          that key, once                   its masked columns, boxed for the others
    whitened         by which numbers to whiten       the same of its whitened columns
    receive          the others' boxes                nothing
    scores           weights; to one party a table    its masked scores, boxed for the others
    slopes           the others' boxes                its masked slopes, boxed for the others
    gradient         the others' boxes, words dealt   nothing: its part of the sum waits for the last piece
    (an "ask")       words dealt, the last boxes      its share of the sum, with noise: the gate lets it out

The dealer is asked for what is dealt, by the stages gram, own and lookup: boxes for the one party whose turn it is.

Boxes pass through the coordinator, which cannot read them. Records go in pieces that fit a message. A label is used
once; a holder that was stopped in the middle has lost the run. Proof: `sealed/proofs/columns.md`.

`messages` has what all share, `party`, `dealer` and `coordinator` the sides; the arithmetic is in `sottovoce.sealed`.
"""

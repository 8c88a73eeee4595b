"""Sums over the records of parties that have columns: who says what, in which order.

    set-up     the holder of the labels sends the others the key of the envelopes; each party sends its masked columns;
               then the program "null" shares which records are null at a party
    a sum      of what each party has by itself, or of products of masked columns: one share of each
    a program  messages in turn, each needed as the sum over the parties alone; then shares of the sum, if it has one

The coordinator asks, and each message names its stage:

    stage     the coordinator sends                          a party answers with
    group     nothing, to who has the labels                 the group's key, in an envelope for each other party
    columns   that key, once                                 its masked columns, in an envelope for the others
    receive   the others' envelopes                              nothing
    say       what is told and dealt with message 0, then    its next message, masked, in an envelope for the others
              the sum of the message before
    add       the others' envelopes, to one party in turn        their sum and its own, in an envelope for the others
    end       the sum of the last message                    nothing: its part of a sum waits for the last piece
    recall    what a finished round was told                 nothing
    (an "ask")  words dealt, the sum of the last message     its share of the sum, with noise: the gate lets it out

Two parties add by themselves: each is sent the other's envelope in the place of a sum. The dealer is asked by the stage
"deal" for all that the one party whose turn it is needs for a program and a piece, in one envelope.

Envelopes pass through the coordinator, which cannot read them. Records go in pieces that fit a message.

All that an end makes is a function of its keys, its rows, what it was told and what it received: made again, it is the
same bytes, and anything else under the same label is refused. So a run goes on after a restart by being played again:
the plan is opened at who was restarted, everybody goes through the set-up, finished rounds are recalled, and the round
at hand is asked from its first message. Proof: `secure/proofs/columns.md`.

`party`, `dealer` and `coordinator` are the sides, the last with what all share; arithmetic is in `sottovoce.secure`.
"""

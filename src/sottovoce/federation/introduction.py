"""A party introduces itself: its public facts, and keys for what follows."""

from __future__ import annotations

from sottovoce.algorithms import served
from sottovoce.data import devices
from sottovoce.data.block import RecordRows
from sottovoce.data.dataset import Dataset
from sottovoce.errors import RefusedError
from sottovoce.federation.demands import left_out
from sottovoce.federation.holder import Handler
from sottovoce.federation.records import MOST_READ, label_values
from sottovoce.federation.run_keys import check_pinned, read_invitation
from sottovoce.gate.frames import Frame
from sottovoce.gate.outgoing import Declared, Outgoing, declare_public, reply


class Introduction(Handler):
    """Answers "hello": public facts and, as the query asks, the class labels or a public key."""

    def answer(self, frame: Frame) -> Outgoing:
        if frame.query == "secure":
            return reply("facts", frame, self._announce(frame.text))
        facts = self.facts(classes=frame.query == "classes")
        if frame.query == "predict":
            facts += (
                declare_public("public_key", self._predictor.public_key, reason="random, made to be told"),
                declare_public("signature", self._predictor.signature, reason="over the public key"),
            )
        return reply("facts", frame, facts)

    def facts(self, *, classes: bool) -> tuple[Declared, ...]:
        """Public facts, each with its reason. Row counts do not differ between neighbours."""
        own = self._holder
        names = [str(name) for name in own.feature_names]
        facts = [
            declare_public("records", int(own.rows.shape[0]), reason="the count is the same for neighbours"),
            declare_public("features", int(own.rows.shape[1]), reason="the schema is public"),
            declare_public("feature_names", names, reason="the schema is public"),
            *self.alignment(),
        ]
        by_pieces = isinstance(own.rows, Dataset)
        kind = devices.kind_of_rows(own.resources, by_pieces=by_pieces)
        if kind is not RecordRows:
            reason = "where the rows lie is the holder's choice"
            facts.append(declare_public("solvers", list(served(kind)), reason=reason))
        if classes and own.labelled and not own.policy.tell_classes:
            raise RefusedError(
                f"{own.name} does not tell which labels occur in its data; declare them with classes=(one, other)."
            )
        if classes:
            labels = own.rows.distinct_labels(MOST_READ) if isinstance(own.rows, Dataset) else own.labels
            values = label_values(labels) if own.labelled else []
            facts.append(declare_public("classes", values, reason="not declared, so read and made public"))
        return tuple(facts)

    def alignment(self) -> tuple[Declared, ...]:
        """The digest of the alignment whose records it serves, if there was one."""
        reason = "a hash by keys that are forgotten, the same at all parties"
        return (declare_public("aligned", self._holder.aligned, reason=reason),) if self._holder.aligned else ()

    def _announce(self, invitation: str) -> tuple[Declared, ...]:
        """A key for secure sums; by columns only among ends whose keys this party has pinned."""
        own = self._holder
        if not own.policy.secure:
            raise RefusedError(f"{own.name} takes no part in secure sums; its holder can, by Policy(secure=True).")
        members = read_invitation(invitation)
        check_pinned(own.name, members, own.identity)
        if members and (reason := left_out(own.policy, members, own.name, own.identity)):
            raise RefusedError(f"{own.name} refuses: {reason}.")
        return (declare_public("public_key", own.keys.new(), reason="random, made to be told"), *self.alignment())

"""A party answers under a plan that it has charged, round by round, and at the end keeps its part of the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sottovoce.algorithms import Algorithm
from sottovoce.algorithms.evaluation import Evaluated
from sottovoce.data.block import Block
from sottovoce.errors import RefusedError
from sottovoce.federation.answering import acknowledged, answer_or_accept, unknown_plan
from sottovoce.federation.holder import Handler, Holder
from sottovoce.federation.models import PartialModel, own_part
from sottovoce.federation.secure_columns.party import ColumnRun
from sottovoce.gate.frames import Frame
from sottovoce.gate.gate import Gate
from sottovoce.gate.memory import Memory
from sottovoce.gate.outgoing import Outgoing, Released, Share, reply
from sottovoce.gate.query import ForgottenError, MessageArrays, Query, Round
from sottovoce.gate.secure_gate import SecureGate, UsedLabels
from sottovoce.plan.families import FAMILIES
from sottovoce.plan.plan import Plan
from sottovoce.queries.pricing import answers_due
from sottovoce.secure.sums import Call, ColumnMasker, Masker

Stored = tuple[Any, Memory | None]  # what a form remembers at the holder between rounds, and its files


class Run:
    """A plan that was charged, and how its party answers: each value by itself, with all of its noise."""

    columns: ColumnRun | None = None

    def __init__(
        self, holder: Holder, plan: tuple[Plan, Algorithm, Mapping[str, Query]], rows: Block, memory: Stored, gate: Gate
    ) -> None:
        self._holder, self.rows, self.gate = holder, rows, gate
        self.plan, self.form, self.queries = plan
        self.memory, gate.memory = memory
        gate.lasting = self.form.lasting
        self.started = False  # whether every party of the plan is known to have charged it

    def message(self, frame: Frame) -> MessageArrays:
        """What the coordinator sent to all parties alike."""
        return frame.arrays

    def release(self, query: Query, round: Round, frame: Frame) -> Released | Share:  # noqa: ARG002
        return self.gate.release(query, round)

    def query_of(self, frame: Frame) -> Query | None:
        """The query of a message, if the form has it; refused unless it is this party's turn in that round."""
        query, number = self.queries.get(frame.query), frame.round
        if query is None:
            return None
        turn = self.plan.has(query.name)
        if turn:
            release = self.plan.release(query.name)
            turn = release.mechanism != "kept" and release.first <= number < release.first + release.count
        if not turn or not query.answered_by(self.plan, self._holder.name, number):
            raise _not_in_turn(frame)
        return query

    def restore_memory(self) -> bool:
        """Make the memory again as it was after the last release that was stored; whether that was possible."""
        memory = self.form.remember(self.plan, self.rows)
        if self.form.lasting(memory):
            if self.gate.memory is None or self._holder.account is None:
                return False
            found = recall_state(self._holder, self.form, self.plan, memory, self.gate.memory)
            if found is None:
                return False
            (memory,) = found
        self.memory = memory
        return True


class SecureSumRun(Run):
    """By rows, with secure sums: a share of each sum leaves."""

    gate: SecureGate

    def release(self, query: Query, round: Round, frame: Frame) -> Share:
        return self.gate.share(query, round, Call.read(frame.text))


class SecureColumnRun(Run):
    """By columns, with secure products: shares of sums leave, and masked messages for the other parties."""

    columns: ColumnRun

    def message(self, frame: Frame) -> MessageArrays:
        said = Call.read(frame.text).said
        return {name: array for name, array in frame.arrays.items() if name in said}

    def release(self, query: Query, round: Round, frame: Frame) -> Share:
        return self.columns.share(query, round, frame)


def begin_run(
    holder: Holder,
    plan: tuple[Plan, Algorithm, Mapping[str, Query]],
    rows: Block,
    memory: Stored,
    secure: tuple[Masker | None, UsedLabels],
) -> Run:
    """The run of a plan that was just charged; `secure` has this party's side of secure sums, and used labels."""
    masker, used = secure
    if masker is None:
        return Run(holder, plan, rows, memory, Gate(plan[0], holder.randomness, holder.account))
    gate = SecureGate(plan[0], holder.randomness, holder.account, masker)
    if not isinstance(masker, ColumnMasker):
        return SecureSumRun(holder, plan, rows, memory, gate)
    gate.used = used
    columns = ColumnRun(plan[0], masker, rows, gate, holder.randomness)
    run = SecureColumnRun(holder, plan, rows, memory, gate)
    run.columns = columns
    return run


def recall_state(holder: Holder, form: Algorithm, plan: Plan, fresh: Any, files: Memory) -> tuple[Any] | None:
    """The memory as it was after the last release of a plan that was stored; None if that is lost."""
    last = None if holder.account is None else holder.account.last_release(plan.digest.hex())
    if last is None:
        return (fresh,)
    number, query, release = last
    state = files.read((number, query), release)
    return None if state is None else (form.recall(fresh, state),)


def answered_all(form: Algorithm, plan: Plan, party: str, given: Mapping[str, int]) -> bool:
    """Whether a party has given every answer that each run of the plan has from it."""
    return all(given.get(query, 0) >= count for query, count in answers_due(form, plan, party).items())


def _not_in_turn(frame: Frame) -> RefusedError:
    return RefusedError(f"query {frame.query!r} in round {frame.round} is not this party's turn in the plan.")


class Training(Handler):
    """Answers "ask" and, over secure columns, "secure" under a plan that has started, and "done" at its end."""

    def answer(self, frame: Frame) -> Outgoing:
        if frame.kind == "done":
            return self._end(frame)
        own, run = self._holder, self._holder.run_of(frame)
        if run is None:
            return unknown_plan(frame)
        if frame.kind == "secure":
            if not run.started or run.columns is None:
                raise RefusedError(f"{own.name} has no run over secure columns that has started under this plan.")
            return answer_or_accept(frame, run.columns.stage(frame, run.query_of(frame)))
        if not run.started:
            raise RefusedError(
                f"{own.name} answers nothing under this plan before it has seen that every party of it signed it: "
                "send the signatures first, in a frame that starts the plan."
            )
        query = run.query_of(frame)
        if query is None:
            raise _not_in_turn(frame)
        message = run.message(frame)
        reason = query.objection(frame.round, message)
        if reason is not None:
            raise RefusedError(f"query {frame.query!r} in round {frame.round} {reason}.")
        if run.gate.behind() and not run.restore_memory():
            own.run = None
            return unknown_plan(frame)
        try:
            released = run.release(query, Round(run.plan, frame.round, message, run.rows, run.memory), frame)
        except ForgottenError:
            return unknown_plan(frame)
        finally:
            # The memory may have followed a value that never left: on it nothing later may depend.
            if run.gate.unreleased:
                own.run = None
                if (run.columns is None or run.memory is None) and run.restore_memory():
                    own.run = run
        return reply("answer", frame, released)

    def _end(self, frame: Frame) -> Outgoing:
        """The run of the frame's plan is over; by columns the party keeps its part of the model, or asks for the plan.

        Without a plan it is the whole conversation that is over.
        """
        own, run = self._holder, self._holder.run
        other = bool(frame.plan) and own.run_of(frame) is None
        if other:
            kept = self._predictor.models.get(frame.plan)  # said before, and the acknowledgement was lost
            if kept is not None or not own.keys.goes_on(frame.plan):  # else it keeps its part of the model first
                own.keys.end(frame.plan)
            if kept is None:
                return unknown_plan(frame)
            if kept.plan.models == "shared":
                self._keep_shared(frame, kept.plan)
        else:
            own.run = None
            try:
                if frame.plan and run is not None and run.plan.split.same_people and run.plan.algorithm in FAMILIES:
                    self._keep_model(run, frame)
            finally:
                own.keys.forget()
        if own.account is not None:  # of another plan that may go on nothing is deleted
            Memory(own.account.path, own.name, frame.plan).clear(own=True, others=not other)
        return reply("done", frame, acknowledged(True) + own.receipt(frame))

    def _keep_model(self, run: Run, frame: Frame) -> None:
        """Keep what this party needs of the model to predict: its own weights of the run, or what comes with its end.

        A model is earned: under a plan with noise it is kept only after this party gave every answer of the plan. An
        evaluation leaves none.
        """
        name, plan = self._holder.name, run.plan
        if isinstance(plan.numbers, Evaluated):
            return
        answered = not plan.private or answered_all(run.form, plan, name, run.gate.answers())
        if not (run.started and answered) and ("coef" in frame.arrays or plan.models == "kept"):
            raise RefusedError(
                f"{name} keeps no model of this plan: it has not been asked for everything that the plan has it "
                "answer, so nothing that it released can have given one."
            )
        if plan.models == "shared":
            self._keep_shared(frame, plan)
            return
        if run.gate.behind() and not run.restore_memory():
            raise RefusedError(f"{name} keeps no model of this plan: what it remembered of the run is lost.")
        weights = run.form.own_weights(run.memory)
        if weights is not None:
            self._predictor.keep(frame.plan, own_part(plan, name, weights))

    def _keep_shared(self, frame: Frame, plan: Plan) -> None:
        """Keep the coefficients of a frame, if it has some; another model of the same plan is refused."""
        arrays = frame.arrays
        if "coef" in arrays and arrays.get("intercept", np.zeros(0)).shape == (1,):
            coef, intercept = arrays["coef"].astype(np.float64), float(arrays["intercept"][0])
            self._predictor.keep(frame.plan, PartialModel(plan, self._holder.name, coef, intercept))

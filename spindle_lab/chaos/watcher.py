"""Reads every topic at one node and records all that it gets: `python -m spindle_lab.chaos.watcher --node N ...`.

With --audit it reads only what is kept for late readers, from the beginning. With --wander its participant reattaches:
when its node dies, its readers go on where they stood, at the same node's next life or, with --node 0, at any other.
With --nodes it is on a host without a node, and goes on at the next one likewise. Orders, one a line on stdin:

    crash           hold a batch of samples in place, and die by SIGKILL
    drain TARGETS   go on until this much has come, JSON {topic: {epoch: count}}, then look a moment longer whether
                    anything comes that must not, and say {"event": "drained"}
    end             end in order

Once attached to everything it says {"event": "attached", "view": id, "session": [...]}, each time.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import sys
import time
from typing import Any

from dds import DataReader, DDSNodeLost, DomainParticipant, Listener, Policy, Qos
from dds.status import NodeState
from dds.waiting.wake import Waker
from spindle.errors import SpindleError
from spindle_lab.chaos.application import ATTACH_NS, Application, answer, main_of, parser_of
from spindle_lab.chaos.checker import AUDIT
from spindle_lab.chaos.history import CLOSED, DRAINED, LOST, TOPICS, TopicPlan
from spindle_lab.chaos.message import Damaged, decode

BATCH = 256
IDLE_S = 0.1
LINGER_S = 0.3  # how long a drained watcher goes on looking


class Ear:
    """One life of one reader."""

    def __init__(self, plan: TopicPlan, life: str, reader: DataReader[bytes]) -> None:
        self.plan = plan
        self.life = life
        self.reader = reader
        self.counts: dict[int, int] = {}  # by epoch
        self.moves = 0


class Watcher(Application):
    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(options)
        self.ears: list[Ear] = []
        self.targets: dict[str, dict[int, int]] | None = None
        self._name = f"{AUDIT if options.audit else 'reader'}-{options.number}"
        self._plans = [one for one in TOPICS if one.kept or not options.audit]
        self._audit: bool = options.audit
        self._lives = 0
        self._drained_at = 0.0
        self._waker = Waker()
        self._wander: bool = options.wander or bool(self.nodes)
        self._session: Any = None

    def order(self, words: list[str]) -> None:
        if words == ["crash"]:
            self.crash()
        elif words[:1] == ["drain"]:
            told = json.loads(" ".join(words[1:]))
            self.targets = {topic: {int(epoch): count for epoch, count in of.items()} for topic, of in told.items()}
        elif words == ["end"]:
            self.close(CLOSED)
            self.drop()
            sys.exit(0)

    # --- a life

    def live(self) -> None:
        for plan in self._plans:
            self.begin(plan)
        self.say_attached()
        self._drained_at = 0.0
        while True:
            if self._wander:
                self.look_where()
            if not self.take_all():
                self.look_whether_drained()
                select.select([0, self._waker.fd], [], [], IDLE_S)
                self._waker.clear()
            elif self.draw.random() < 0.005:
                time.sleep(self.draw.uniform(0.0, 0.2))  # a reader that is slow now and then
            self.pause(0)

    def begin(self, plan: TopicPlan) -> None:
        """Open a reader: of what is kept, mostly from the beginning."""
        assert self.participant is not None
        from_history = plan.kept and (self._audit or self.draw.random() < 0.7)
        qos = Qos(Policy.Durability.Volatile) if plan.kept and not from_history else None
        reader = DataReader(self.participant, self.topic(plan), qos=qos,
                            listener=Listener(on_data_available=lambda _: self._waker.ring()))
        reader.read_own_writes = False
        self._lives += 1
        ear = Ear(plan, f"{self._name}.{self._lives}", reader)
        session, view = self.session()
        self.recorder.say("reader", life=ear.life, topic=plan.name, session=session, view=view, history=from_history,
                          wanders=self._wander)
        self.ears.append(ear)

    def say_attached(self) -> None:
        assert self.participant is not None
        self._session = self._where
        session, view = self.session()
        answer("attached", view=view, session=session)

    @property
    def _where(self) -> tuple[Any, int]:
        """Session and life of the node; of one that is external the session stays."""
        assert self.participant is not None
        return self.participant.session, self.participant.session.node_pid

    def attach(self) -> DomainParticipant:
        if self.nodes or not self._wander:
            return super().attach()
        return DomainParticipant(0, node_id=self.node or None, timeout=ATTACH_NS, reattach=True)

    def look_where(self) -> None:
        """Say so when everything has moved to another node."""
        assert self.participant is not None
        if self.participant.get_node_status().state is NodeState.ATTACHED and (
                self._where != self._session):
            try:
                self.say_attached()
            except SpindleError as error:  # gone again
                self.recorder.say("said", text=str(error))

    def note_moves(self, ear: Ear) -> None:
        """Record that a reader went on elsewhere, and what it says of that: before what it got there, or at its end."""
        status = ear.reader.get_reattached_status()
        if status.total_count == ear.moves:
            return
        ear.moves = status.total_count
        try:
            session = self.session()[0]
        except SpindleError:  # gone again
            session = None
        self.recorder.say("moved", life=ear.life, moves=ear.moves, lost=status.gap_count, session=session)

    def take_all(self) -> bool:
        """Take a batch from every reader; False if there was nothing. Raises DDSNodeLost when all have ended."""
        found = False
        for ear in list(self.ears):
            try:
                samples = ear.reader.take(BATCH)
            except DDSNodeLost as error:
                self.end(ear, LOST)
                if not self.ears:
                    raise error
                continue
            if samples:
                found = True
                self.record(ear, samples)
        return found

    def record(self, ear: Ear, samples: list[Any]) -> None:
        got = []
        if self._wander:
            self.note_moves(ear)
        for sample in samples:
            info = sample.sample_info
            try:
                stamp = decode(bytes(sample))
                if stamp.topic != ear.plan.number:
                    raise Damaged(f"a message of topic number {stamp.topic}: {stamp}")
            except Damaged as error:
                self.recorder.say("damaged", life=ear.life, text=f"{error}, of node {info.node} at {info.view_id}/"
                                                                 f"{info.sequence}")
                continue
            if stamp.node and info.node != stamp.node:
                self.recorder.say("damaged", life=ear.life, text=f"one of node {stamp.node} as one of {info.node}")
            got.append((info.view_id, info.sequence, info.node, stamp.epoch, stamp.number))
            ear.counts[stamp.epoch] = stamp.number + 1
        self.recorder.say("got", life=ear.life, m=got)

    def look_whether_drained(self) -> None:
        """With all targets reached and a moment passed, say so, once."""
        if self.targets is None:
            return
        for ear in self.ears:
            wanted = self.targets.get(ear.plan.name, {})
            if any(ear.counts.get(epoch, 0) < count for epoch, count in wanted.items()):
                return
        now = time.monotonic()
        if not self._drained_at:
            self._drained_at = now
        elif now - self._drained_at > LINGER_S:
            self.targets = None
            held = list(self.ears)  # a reader that is forgotten is closed, and the history goes with the last one
            self.close(DRAINED)
            answer("drained")
            while held:
                self.pause(1.0)

    def end(self, ear: Ear, why: str) -> None:
        self.ears.remove(ear)
        if self._wander:
            self.note_moves(ear)
        lost = ear.reader.get_sample_lost_status().total_count if why != CLOSED else 0
        self.recorder.say("reader-end", life=ear.life, why=why, lost=lost)

    def close(self, why: str) -> None:
        for ear in list(self.ears):
            self.end(ear, why)

    def lost(self, error: Exception | None) -> None:
        self.close(LOST if isinstance(error, ConnectionError) else CLOSED)

    def crash(self) -> None:
        """Die with samples on loan."""
        held = [ear.reader.take_batch(BATCH) for ear in self.ears]
        os.kill(os.getpid(), signal.SIGKILL if held is not None else 0)


def main() -> int:
    parser = parser_of(__doc__ or "")
    parser.add_argument("--audit", action="store_true", help="only what is kept, from the beginning")
    parser.add_argument("--wander", action="store_true", help="go on at another node when this one dies")
    return main_of(Watcher(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())

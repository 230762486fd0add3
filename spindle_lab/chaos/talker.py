"""Writes to every topic at one node: `python -m spindle_lab.chaos.talker --node N ...`. Orders, one a line on stdin:

    crash     take a loan, fill half of it, and die by SIGKILL
    churn     open a reader of a topic of its own and close it again: two changes of view
    finish    write a last few messages, wait until everything is acknowledged, and say {"event": "finished", "wrote":
              {topic: [epoch, count]}}
    end       end in order

With --nodes it is on a host without a node: it goes on by itself when its node dies, with the same writers.

Rules: what is about to be written is recorded before, what was accepted after. After a timeout the same messages are
written again, so that no number is left out.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from typing import Any

from dds import DataReader, DataWriter, DDSException, DDSTimeout, Policy, Qos, Topic
from spindle_lab.chaos.application import ATTACH_NS, Application, answer, main_of, parser_of
from spindle_lab.chaos.history import CLOSED, FINISHED, LOGGED, LOST, TOPICS, TopicPlan
from spindle_lab.chaos.message import SIZE_MAX, Stamp, encode, size_of

EPOCHS_PER_PROCESS = 10_000
FAREWELL = 10  # messages to each topic at the end
ACK_NS = 2_000_000_000


class Voice:
    """One life of one writer."""

    def __init__(self, plan: TopicPlan, epoch: int, writer: DataWriter[bytes]) -> None:
        self.plan = plan
        self.epoch = epoch
        self.writer = writer
        self.accepted = 0
        self.attempted = 0


class Talker(Application):
    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(options)
        self.pace: float = options.pace
        self.voices: dict[str, Voice] = {}
        self.finishing = False
        self._epochs = iter(range(options.number * EPOCHS_PER_PROCESS, (options.number + 1) * EPOCHS_PER_PROCESS))

    def order(self, words: list[str]) -> None:
        if words == ["crash"]:
            self.crash()
        elif words == ["churn"]:
            self.churn()
        elif words == ["finish"]:
            self.finishing = True
        elif words == ["end"]:
            self.silence(CLOSED)
            self.drop()
            sys.exit(0)

    # --- a life

    def live(self) -> None:
        for plan in TOPICS:
            # An unordered topic only if the writer stays at its node: else each reader has just what reached it.
            if plan.ordered or not self.nodes:
                self.begin(plan)
        while not self.finishing:
            voice = self.draw.choice(list(self.voices.values()))
            count = self.draw.choice((1, 1, 2, 5, 10, 40))
            self.write(voice, count)
            if self.draw.random() < 0.1:
                self.ask_for_acks(voice, self.draw.choice((0, 50_000_000, ACK_NS)))
            if self.draw.random() < 0.005 and not self.nodes:
                self.end(voice, CLOSED)
                voice.writer.close()
                self.begin(voice.plan)
            self.pause(self.draw.expovariate(self.pace / 10))
        self.say_farewell()

    def begin(self, plan: TopicPlan) -> None:
        """Open a writer."""
        assert self.participant is not None
        writer = DataWriter(self.participant, self.topic(plan))
        voice = Voice(plan, next(self._epochs), writer)
        session, view = self.session()
        self.recorder.say("writer", epoch=voice.epoch, topic=plan.name, session=session, view=view,
                          external=bool(self.nodes))
        self.voices[plan.name] = voice

    def end(self, voice: Voice, why: str) -> None:
        self.voices.pop(voice.plan.name, None)
        self.recorder.say("writer-end", epoch=voice.epoch, why=why)

    def silence(self, why: str) -> None:
        for voice in list(self.voices.values()):
            self.end(voice, why)

    def lost(self, error: Exception | None) -> None:
        self.silence(LOST if isinstance(error, ConnectionError) else CLOSED)

    # --- writing

    def message(self, voice: Voice, number: int) -> bytes:
        return encode(Stamp(voice.plan.number, self.node, voice.epoch, number), size_of(voice.epoch, number, SIZE_MAX))

    def write(self, voice: Voice, count: int) -> None:
        """Write `count` messages by one of the ways that the API has; fewer if they don't fit in time."""
        start = voice.accepted
        messages = [self.message(voice, number) for number in range(start, start + count)]
        self.recorder.say("write", epoch=voice.epoch, to=start + count)
        try:
            if count > 2:
                voice.writer.write_many(messages)
                voice.accepted += count
            else:
                for one in messages:
                    self.write_one(voice, one)
                    voice.accepted += 1
        except DDSTimeout as error:
            voice.accepted += getattr(error, "written", 0)
        self.recorder.say("wrote", epoch=voice.epoch, to=voice.accepted)

    def write_one(self, voice: Voice, message: bytes) -> None:
        if self.draw.random() < 0.7:
            voice.writer.write(message)
            return
        loan = voice.writer.loan(len(message))
        loan.data[:] = message
        if self.draw.random() < 0.2:
            loan.discard()
            voice.writer.write(message)
        else:
            loan.commit()

    def ask_for_acks(self, voice: Voice, timeout_ns: int) -> bool:
        """Ask whether all that was accepted is acknowledged, and record it if it is."""
        count, persisted = voice.accepted, voice.plan.kind == LOGGED and self.draw.random() < 0.7
        answered = voice.writer.wait_for_acks(timeout_ns, persisted=persisted)
        if answered:
            self.recorder.say("acked", epoch=voice.epoch, to=count, persisted=persisted)
        return answered

    def say_farewell(self) -> None:
        """The last messages, and that all have arrived. Raises DDSException if the node is lost over it."""
        for voice in self.voices.values():
            last = voice.accepted + FAREWELL
            while voice.accepted < last:
                self.write(voice, last - voice.accepted)
        for voice in self.voices.values():
            persisted = voice.plan.kind == LOGGED
            while not voice.writer.wait_for_acks(ACK_NS, persisted=persisted):
                self.pause(0)
            self.recorder.say("acked", epoch=voice.epoch, to=voice.accepted, persisted=persisted)
        wrote: dict[str, Any] = {name: [voice.epoch, voice.accepted] for name, voice in self.voices.items()}
        held = list(self.voices.values())  # a writer that is forgotten is closed
        self.silence(FINISHED)
        answer("finished", wrote=wrote)
        while held:
            self.pause(1.0)

    # --- orders

    def crash(self) -> None:
        """Die with a loan open and half filled."""
        for voice in self.voices.values():
            try:
                loan = voice.writer.loan(SIZE_MAX)
                loan.data[: SIZE_MAX // 2] = b"\xff" * (SIZE_MAX // 2)
            except DDSException:
                pass  # then it dies without
        os.kill(os.getpid(), signal.SIGKILL)

    def churn(self) -> None:
        """Make the view change, by an endpoint of a topic that only this node has."""
        if self.participant is None:
            return
        try:
            qos = Qos(Policy.Reliability.Reliable(0))
            topic: Topic[bytes] = Topic(self.participant, f"chaos/side/{self.node}", bytes, qos=qos)
            with DataReader(self.participant, topic):
                time.sleep(self.draw.uniform(0, 0.01))
        except DDSException as error:
            self.recorder.say("said", text=f"opening a reader: {error}")


def main() -> int:
    parser = parser_of(__doc__ or "")
    parser.add_argument("--pace", type=float, default=200.0, help="messages a second")
    return main_of(Talker(parser.parse_args()))


__all__ = ["ATTACH_NS", "EPOCHS_PER_PROCESS", "Talker"]

if __name__ == "__main__":
    sys.exit(main())

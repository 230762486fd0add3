"""What talkers and watchers have in common: attaching again and again, the Qos of the topics, orders from the round.

Rules: whatever the API announces (DDSException, and SpindleError where the session is asked) is written down and lived
with: the application tries again, as a good program would. Anything else is trouble, and a violation. Orders come on
stdin, one a line; the end of stdin ends the application at once, so that nothing outlives the round.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import select
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import dds
from dds import DDSException, DomainParticipant, Policy, Qos, Topic
from spindle.client import Event
from spindle.errors import NodeStopped, SpindleError
from spindle_lab.chaos.history import ATOMIC, LOGGED, UNORDERED, VOLATILE, Recorder, TopicPlan
from spindle_lab.chaos.message import SIZE_MAX

BLOCKING_NS = 1_000_000_000  # longest a write waits
ATTACH_NS = 3_000_000_000
RETRY_S = 0.05
HISTORY_BYTES = 64 << 20  # of the kept topics: nothing of a round may fall out, or the checker can't ask for it

QOS = {
    UNORDERED: Qos(Policy.Reliability.BestEffort),
    ATOMIC: Qos(Policy.Reliability.Reliable(BLOCKING_NS), Policy.Durability.Volatile),
    VOLATILE: Qos(Policy.Reliability.Reliable(BLOCKING_NS), Policy.Durability.TransientLocal),
    LOGGED: Qos(Policy.Reliability.Reliable(BLOCKING_NS), Policy.Durability.Persistent),
}


class Finish(Exception):
    """The round has told the application to come to its end."""


class Application:
    """One application process. Subclasses say what they do with a participant."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.node: int = options.node
        self.nodes: list[str] = options.nodes.split(",") if options.nodes else []  # of an external one: where they are
        self.draw = random.Random(options.seed)
        self.secret: str = options.secret
        self.recorder = Recorder(options.record)
        self.participant: DomainParticipant | None = None
        self._orders = b""

    def run(self) -> int:
        """Lives until it is told to end; returns the exit code."""
        while True:
            try:
                self.participant = self.attach()
                self.watch_views()
                self.live()
                return 0
            except (DDSException, SpindleError) as error:
                self.lost(error)
                self.recorder.say("said", text=str(error))
            except Finish:
                raise
            except Exception:
                self.lost(None)
                self.recorder.say("trouble", text=traceback.format_exc())
            finally:
                self.drop()
            self.pause(RETRY_S)

    def attach(self) -> DomainParticipant:
        if self.nodes:
            return DomainParticipant.remote(self.nodes, secret=self.secret, timeout=ATTACH_NS, reattach=True)
        return DomainParticipant(0, node_id=self.node, timeout=ATTACH_NS)

    def live(self) -> None:
        """What it does while it is attached. Raises DDSException when that ends."""
        raise NotImplementedError

    def lost(self, error: Exception | None) -> None:
        """The attachment has ended: say so of everything that was open."""
        raise NotImplementedError

    def order(self, words: list[str]) -> None:
        """Carries out an order."""
        raise NotImplementedError

    def drop(self) -> None:
        participant, self.participant = self.participant, None
        if participant is not None:
            try:
                participant.close()
            except (DDSException, SpindleError) as error:
                self.recorder.say("said", text=f"closing: {error}")

    # --- the node

    def topic(self, plan: TopicPlan) -> Topic[bytes]:
        assert self.participant is not None
        return Topic(self.participant, plan.name, bytes, qos=QOS[plan.kind], size_max=SIZE_MAX,
                     history_bytes=HISTORY_BYTES if plan.kept else 0)

    def session(self) -> tuple[list[Any], int]:
        """What tells this life of the node from others, and its installed view."""
        assert self.participant is not None
        try:
            status = self.participant.session.status()
        except TimeoutError as error:
            raise NodeStopped(str(error)) from None
        return [status["node_id"], self.participant.session.node_pid, status["incarnation"], status["group_id"]], int(
            status["view_id"])

    def watch_views(self) -> None:
        """Record every view that the node tells of; not if the application is external: its node changes unnoticed."""
        assert self.participant is not None
        if self.nodes:
            return
        session, recorder = self.session()[0], self.recorder

        def heard(event: Event) -> None:
            if event.view is not None:
                recorder.say("view", session=session, view=event.view.view_id, members=event.view.node_ids)

        self.participant.session.add_listener(heard)

    # --- the round

    def pause(self, seconds: float) -> None:
        """Waits, and carries out the orders that come meanwhile."""
        end = time.monotonic() + seconds
        while True:
            left = end - time.monotonic()
            if select.select([0], [], [], max(0.0, left))[0]:
                chunk = os.read(0, 4096)
                if not chunk:
                    os._exit(0)
                *lines, self._orders = (self._orders + chunk).split(b"\n")
                for line in lines:
                    self.order(line.decode().split())
            elif left <= 0:
                return


def answer(event: str, **what: Any) -> None:
    """Tell the round."""
    print(json.dumps({"event": event, **what}), flush=True)


def parser_of(text: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=text)
    parser.add_argument("--node", type=int, required=True)
    parser.add_argument("--nodes", default="", help="addresses, for one on a host without a node")
    parser.add_argument("--secret", default="", help="file with what its nodes share")
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--seed", required=True)
    parser.add_argument("--number", type=int, required=True, help="of this process in the round, from 1")
    return parser


def main_of(application: Application) -> int:
    try:
        return application.run()
    except Exception:
        application.recorder.say("trouble", text=traceback.format_exc())
        traceback.print_exc(file=sys.stderr)
        return 1


__all__ = ["ATTACH_NS", "QOS", "Application", "answer", "dds", "main_of", "parser_of"]

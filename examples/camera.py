"""What the camera and its viewers agree on: a frame, and the topic of frames.

A frame is a NumPy record of 6 MB. Nobody says so in advance: samples may have any size. The camera fills a frame in the
memory that it is sent from, and viewers read it in that same memory, read-only: on a host it is never copied.
"""

from __future__ import annotations

import numpy as np

import dds

HEIGHT, WIDTH = 1200, 1600
FRAME = np.dtype([("number", "u8"), ("exposed_ns", "i8"), ("pixels", "u1", (HEIGHT, WIDTH, 3))])

# A viewer that falls behind goes on with the newest frame, and holds nobody up.
NEWEST = dds.Qos(dds.Policy.History.KeepLast(1))


def frames(participant: dds.DomainParticipant) -> dds.Topic:
    return dds.Topic(participant, "camera/frames", FRAME, NEWEST)

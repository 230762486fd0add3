"""Goal: the tcp fabric keeps its promises when the kernel encrypts its connections.

Method: the conformance suite of all fabrics, over connections that `spindle.security.ktls` has taken.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from spindle.security import ktls
from tests.spindle_core.cluster import connection
from tests.spindle_core.fabric import test_tcp as plain
from tests.spindle_core.fabric.tcp_peers import TcpPeer


def make_peers(n: int) -> list[TcpPeer]:
    peers = [TcpPeer(rank, n) for rank in range(n)]
    for i in range(n):
        for k in range(i + 1, n):
            secret = os.urandom(32)
            ends = connection()
            for end, server_side in zip(ends, (False, True), strict=True):
                ktls.protect(end, secret, server_side)
            peers[i].fabric.connect(k, ends[0].detach())
            peers[k].fabric.connect(i, ends[1].detach())
    return peers


@pytest.mark.skipif(bool(ktls.available()), reason=f"this kernel can't: {ktls.available()[:60]}")
class TestEncrypted(plain.TestTcp):
    make_peers: Callable[[int], list[Any]] = staticmethod(make_peers)  # type: ignore[assignment]

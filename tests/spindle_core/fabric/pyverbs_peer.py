"""A peer of the verbs fabric that shares no code of it but the format of addresses: a program over pyverbs.

Run by the system's Python, whose pyverbs fits the system's rdma-core. It takes commands as lines of JSON and answers
each with one. Its row is `ROW_SIZE` bytes. `word` is what goes with a ring: None for a write that does not ring.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pyverbs.enums as e
from pyverbs.addr import GID, AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context, get_device_list
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

ROOT = Path(__file__).resolve().parents[3]
ROW_SIZE, PAGE_SIZE = 64 << 10, 4096
RINGS = 8
RECEIVES = RINGS + 2
PACKET = 77


def load_addresses() -> Any:
    """The format of addresses, without the package around it."""
    spec = importlib.util.spec_from_file_location("verbs_address", ROOT / "spindle_core/fabric/verbs_address.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


class Peer:
    def __init__(self) -> None:
        self.addresses = load_addresses()
        self.context = Context(name=get_device_list()[0].name.decode())
        self.port = self.context.query_port(1)
        entries = [(entry.gid_index, str(self.context.query_gid(1, entry.gid_index)))
                   for entry in self.context.query_gid_table(32) if entry.gid_type == e.IBV_GID_TYPE_ROCE_V2]
        self.gid_index, self.gid = next((index, gid) for index, gid in entries if ":ffff:" in gid)
        self.pd = PD(self.context)

    def begin(self, rank: int) -> dict[str, Any]:
        """A new end of a connection; the last one is left behind. Answers with its address."""
        self.cq = CQ(self.context, 256)
        cap = QPCap(max_send_wr=64, max_recv_wr=RECEIVES, max_send_sge=1, max_recv_sge=1)
        self.qp = QP(self.pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=cap, sq_sig_all=1))
        access = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE
        self.copy = MR(self.pd, ROW_SIZE, access)
        self.page = MR(self.pd, PAGE_SIZE, access)
        self.scratch = MR(self.pd, ROW_SIZE, e.IBV_ACCESS_LOCAL_WRITE)
        attributes = QPAttr(port_num=1)
        attributes.qp_access_flags = access
        self.qp.to_init(attributes)
        for slot in range(RECEIVES):
            self.post_receive(slot)
        self.theirs: Any = None
        self.received: list[dict[str, Any]] = []
        return self.address(rank)

    def post_receive(self, slot: int) -> None:
        part = SGE(self.scratch.buf, 1, self.scratch.lkey)  # pyverbs wants one; nothing comes
        self.qp.post_recv(RecvWR(wr_id=slot, num_sge=1, sg=[part]))

    def address(self, rank: int) -> dict[str, Any]:
        raw = bytes.fromhex(self.gid.replace(":", ""))
        memory = self.addresses.Memory(self.copy.buf, ROW_SIZE, self.copy.rkey)
        mine = self.addresses.Address(rank, self.qp.qp_num, PACKET, self.port.lid, self.port.link_layer,
                                      self.port.active_mtu, raw, RINGS, 4, memory,
                                      page=self.addresses.Memory(self.page.buf, PAGE_SIZE, self.page.rkey))
        return {"address": mine.pack().hex()}

    def connect(self, address: str) -> dict[str, Any]:
        self.theirs = theirs = self.addresses.Address.parse(bytes.fromhex(address))
        text = theirs.gid.hex(":", 2)
        route = GlobalRoute(dgid=GID(text), sgid_index=self.gid_index, hop_limit=8)
        attributes = QPAttr(port_num=1)
        attributes.ah_attr = AHAttr(gr=route, is_global=1, port_num=1)
        attributes.path_mtu = min(theirs.mtu, self.port.active_mtu)
        attributes.dest_qp_num = theirs.queue_pair
        attributes.rq_psn = theirs.packet
        attributes.sq_psn = PACKET
        attributes.max_dest_rd_atomic = attributes.max_rd_atomic = 4
        attributes.min_rnr_timer = 12
        attributes.timeout = 14
        attributes.retry_cnt = 7
        attributes.rnr_retry = 0
        self.qp.to_rts(attributes)
        return {}

    def finish(self, request: SendWR) -> dict[str, Any]:
        """Posts it, and waits for its completion."""
        self.qp.post_send(request)
        while True:
            n, found = self.cq.poll(1)
            if n and not (found[0].opcode & e.IBV_WC_RECV and found[0].status == e.IBV_WC_SUCCESS):
                return {"status": found[0].status}
            if n:
                self.received.append(self.describe(found[0]))

    def describe(self, completion: Any) -> dict[str, Any]:
        self.post_receive(completion.wr_id)
        return {"word": int.from_bytes(completion.imm_data.to_bytes(4, "little"), "big")}

    def write(self, offset: int, data: str, word: int | None, key: int | None = None) -> dict[str, Any]:
        raw = bytes.fromhex(data)
        self.scratch.write(raw, len(raw))
        part = SGE(self.scratch.buf, len(raw), self.scratch.lkey)
        kind = e.IBV_WR_RDMA_WRITE if word is None else e.IBV_WR_RDMA_WRITE_WITH_IMM
        request = SendWR(opcode=kind, num_sge=1 if raw else 0, sg=[part] if raw else None,
                         imm_data=self.to_wire(word or 0))
        request.set_wr_rdma(self.theirs.row.key if key is None else key, self.theirs.row.address + offset)
        return self.finish(request)

    @staticmethod
    def to_wire(word: int) -> int:
        return int.from_bytes(word.to_bytes(4, "big"), "little")

    def message(self, data: str, word: int) -> dict[str, Any]:
        """What no node sends: it names no memory."""
        raw = bytes.fromhex(data)
        self.scratch.write(raw, len(raw))
        part = SGE(self.scratch.buf, len(raw), self.scratch.lkey)
        return self.finish(SendWR(opcode=e.IBV_WR_SEND_WITH_IMM, num_sge=1, sg=[part], imm_data=self.to_wire(word)))

    def look(self, offset: int, length: int) -> dict[str, Any]:
        """What was written into this program's copy, and the words that came."""
        while True:
            n, found = self.cq.poll(1)
            if not n:
                break
            self.received.append(self.describe(found[0]))
        received, self.received = self.received, []
        return {"data": self.copy.read(length, offset).hex(), "received": received}


def main() -> None:
    peer = Peer()
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        try:
            print(json.dumps(getattr(peer, name)(*arguments)), flush=True)
        except Exception as error:
            print(json.dumps({"error": f"{type(error).__name__}: {error}"}), flush=True)


if __name__ == "__main__":
    main()

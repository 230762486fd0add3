"""An RDMA device, as one fabric has it open: what is registered with it, and its queue pairs.

Each fabric opens the device for itself, so all that an epoch has there ends with it: regions and their keys are given
back when the object goes, after whoever uses them.

RoCE peers are reached by GID; its index says which of the port's addresses is the source. Of the RoCE v2 addresses,
routers and switches are set up for the one that comes from an IPv4 address. InfiniBand peers are reached by LID, or by
GID as well where they are in another subnet.
"""
from libc.errno cimport ENOMEM, errno
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memset

from spindle_core.fabric.verbs_api cimport (
    IBV_ACCESS_REMOTE_ATOMIC,
    IBV_ACCESS_REMOTE_READ,
    IBV_ACCESS_REMOTE_WRITE,
    IBV_GID_TYPE_ROCE_V2,
    IBV_LINK_LAYER_ETHERNET,
    IBV_PORT_ACTIVE,
    IBV_QP_ACCESS_FLAGS,
    IBV_QP_AV,
    IBV_QP_DEST_QPN,
    IBV_QP_MAX_DEST_RD_ATOMIC,
    IBV_QP_MAX_QP_RD_ATOMIC,
    IBV_QP_MIN_RNR_TIMER,
    IBV_QP_PATH_MTU,
    IBV_QP_PKEY_INDEX,
    IBV_QP_PORT,
    IBV_QP_RETRY_CNT,
    IBV_QP_RNR_RETRY,
    IBV_QP_RQ_PSN,
    IBV_QP_SQ_PSN,
    IBV_QP_STATE,
    IBV_QP_TIMEOUT,
    IBV_QPS_INIT,
    IBV_QPS_RTR,
    IBV_QPS_RTS,
    IBV_QPT_RC,
    ibv_alloc_pd,
    ibv_close_device,
    ibv_cq,
    ibv_create_qp,
    ibv_dealloc_pd,
    ibv_dereg_mr,
    ibv_destroy_qp,
    ibv_device,
    ibv_fork_init,
    ibv_free_device_list,
    ibv_get_device_list,
    ibv_get_device_name,
    ibv_gid_entry,
    ibv_modify_qp,
    ibv_mr,
    ibv_open_device,
    ibv_qp,
    ibv_qp_attr,
    ibv_qp_init_attr,
    ibv_query_device,
    ibv_query_gid_ex,
    ibv_query_port,
    ibv_reg_mr,
)

import os

from spindle_core.errors import RdmaUnavailable

cdef enum:
    READS_MAX = 16               # reads and atomics on the way per connection, where the device can
    INLINE_LEAST = 32
    RNR_TIMER = 12               # 0.64 ms
    RNR_RETRIES = 3              # there is a receive for all that is sent (verbs_link): more would hide a mistake
    HOPS_MAX = 64
    REGIONS_AT_ONCE = 64

ibv_fork_init()                  # before anything else: children of this process must not take pinned pages with them


cdef inline bint is_ipv4(const uint8_t *raw) noexcept nogil:
    """::ffff:a.b.c.d"""
    cdef int i
    for i in range(10):
        if raw[i]:
            return False
    return raw[10] == 0xFF and raw[11] == 0xFF


cdef class VerbsDevice:
    """`name`: "" for the first one whose `port` is active; `gid_index`: -1 for the one that fits best.

    RdmaUnavailable, with what to do, where there is no such device, port or address, or it can't be used.
    """

    def __cinit__(self):
        self.context = NULL
        self.pd = NULL
        self.regions = NULL

    def __init__(self, str name="", int port=1, int gid_index=-1):
        cdef int n = 0, i, status
        cdef ibv_device **devices = ibv_get_device_list(&n)
        cdef list seen = []
        if devices == NULL:
            raise RdmaUnavailable(f"no list of RDMA devices ({os.strerror(errno)}): is the kernel module ib_uverbs"
                                  " loaded?")
        self.port = port
        try:
            for i in range(n):
                self.name = (<bytes>ibv_get_device_name(devices[i])).decode()
                if name and self.name != name:
                    seen.append(self.name)
                    continue
                self.context = ibv_open_device(devices[i])
                if self.context == NULL:
                    seen.append(f"{self.name} (can't be opened: {os.strerror(errno)})")
                    continue
                status = ibv_query_port(self.context, port, &self.link)
                if status == 0 and self.link.state == IBV_PORT_ACTIVE:
                    break
                seen.append(f"{self.name} (port {port} is {'not active' if status == 0 else 'not there'})")
                ibv_close_device(self.context)
                self.context = NULL
        finally:
            ibv_free_device_list(devices)
        if self.context == NULL:
            raise RdmaUnavailable(f"no RDMA device {name or 'with an active port'}: there is"
                                  f" {', '.join(seen) or 'none'}; `rdma link` shows their ports")
        if ibv_query_device(self.context, &self.limits) != 0:
            raise RdmaUnavailable(f"{self.name} does not say what it can do: {os.strerror(errno)}")
        self.choose_gid(gid_index)
        self.pd = ibv_alloc_pd(self.context)
        if self.pd == NULL:
            raise RdmaUnavailable(f"{self.name} gives no protection domain: {os.strerror(errno)}")

    cdef int choose_gid(self, int gid_index) except -1:
        """The source address: RoCE v2 over IPv4, else over IPv6; on InfiniBand the port's first."""
        cdef ibv_gid_entry found
        cdef int i, best = -1
        if gid_index < 0 and self.link.link_layer != IBV_LINK_LAYER_ETHERNET:
            gid_index = 0
        if gid_index >= 0:
            if ibv_query_gid_ex(self.context, self.port, gid_index, &found, 0) != 0:
                raise RdmaUnavailable(f"{self.name} port {self.port} has no GID of index {gid_index}")
            best = gid_index
        else:
            for i in range(self.link.gid_tbl_len):
                if ibv_query_gid_ex(self.context, self.port, i, &found, 0) != 0:
                    continue     # an empty place
                if found.gid_type == IBV_GID_TYPE_ROCE_V2 and (best < 0 or is_ipv4(found.gid.raw)):
                    best = i
                    if is_ipv4(found.gid.raw):
                        break
            if best < 0:
                raise RdmaUnavailable(f"{self.name} port {self.port} has no RoCE v2 address: give its network"
                                      " interface an IP address")
            ibv_query_gid_ex(self.context, self.port, best, &found, 0)
        self.gid_index = best
        memcpy(self.gid.raw, found.gid.raw, 16)
        return 0

    @property
    def gid_bytes(self):
        return (<char *>self.gid.raw)[:16]

    @property
    def reads(self):
        """Reads and atomics of a peer that this device serves at once, and may itself have on the way."""
        return max(1, min(READS_MAX, self.limits.max_qp_rd_atom, self.limits.max_qp_init_rd_atom))

    cdef ibv_mr *add_region(self, void *base, uint64_t size, int access) except NULL:
        """Registers memory until end_region(), or this object goes."""
        cdef ibv_mr *region
        cdef void *longer
        if self.n_regions == self.regions_max:
            longer = realloc(self.regions, (self.regions_max + REGIONS_AT_ONCE) * sizeof(void *))
            if longer == NULL:
                raise MemoryError()
            self.regions = <ibv_mr **>longer
            self.regions_max += REGIONS_AT_ONCE
        region = ibv_reg_mr(self.pd, base, size, access)
        if region == NULL:
            if errno == ENOMEM:
                raise RdmaUnavailable(f"{size} bytes can't be pinned for {self.name}: raise the limit of locked memory"
                                      " (`ulimit -l unlimited`, LimitMEMLOCK=infinity in the unit), or make windows"
                                      " smaller")
            raise RdmaUnavailable(f"{size} bytes can't be registered with {self.name}: {os.strerror(errno)}")
        self.regions[self.n_regions] = region
        self.n_regions += 1
        return region

    cdef void end_region(self, ibv_mr *region):
        """Ends a registration, and with it its keys."""
        cdef uint32_t i
        for i in range(self.n_regions):
            if self.regions[i] == region:
                self.n_regions -= 1
                self.regions[i] = self.regions[self.n_regions]
                ibv_dereg_mr(region)
                return

    cdef ibv_qp *make_queue_pair(self, ibv_cq *send_cq, ibv_cq *receive_cq, uint32_t sends, uint32_t receives,
                                 uint32_t *inline_max) except NULL:
        """A queue pair that can post receives; `inline_max`: wanted, then what it has, at most."""
        cdef ibv_qp_init_attr wanted
        cdef ibv_qp_attr state
        cdef ibv_qp *qp = NULL
        cdef uint32_t size = inline_max[0]
        while qp == NULL:
            memset(&wanted, 0, sizeof(wanted))
            wanted.send_cq = send_cq
            wanted.recv_cq = receive_cq
            wanted.qp_type = IBV_QPT_RC
            wanted.cap.max_send_wr = sends
            wanted.cap.max_recv_wr = receives
            wanted.cap.max_send_sge = wanted.cap.max_recv_sge = 1
            wanted.cap.max_inline_data = size
            qp = ibv_create_qp(self.pd, &wanted)
            if qp == NULL:
                if size == 0:
                    raise RdmaUnavailable(f"{self.name} gives no queue pair for {sends} work requests and {receives}"
                                          f" receives: {os.strerror(errno)}")
                size = size // 2 if size > INLINE_LEAST else 0      # it can't carry so much inline, perhaps
        if wanted.cap.max_inline_data < inline_max[0]:
            inline_max[0] = wanted.cap.max_inline_data
        memset(&state, 0, sizeof(state))
        state.qp_state = IBV_QPS_INIT
        state.port_num = self.port
        state.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC
        if ibv_modify_qp(qp, &state, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) != 0:
            ibv_destroy_qp(qp)
            raise RdmaUnavailable(f"{self.name} port {self.port} takes no queue pair: {os.strerror(errno)}")
        return qp

    cdef int connect(self, ibv_qp *qp, uint32_t there, uint32_t packet, address, ack_timeout, retries) except -1:
        """Connects a queue pair to the peer's one, number `there`. `packet`: number of the first packet that it sends.
        """
        cdef ibv_qp_attr state
        cdef const char *gid = address.gid
        cdef bint ethernet = self.link.link_layer == IBV_LINK_LAYER_ETHERNET
        memset(&state, 0, sizeof(state))
        state.qp_state = IBV_QPS_RTR
        state.path_mtu = min(self.link.active_mtu, <int>address.mtu)
        state.dest_qp_num = there
        state.rq_psn = address.packet
        state.max_dest_rd_atomic = self.reads
        state.min_rnr_timer = RNR_TIMER
        state.ah_attr.port_num = self.port
        state.ah_attr.dlid = address.lid
        if ethernet or address.lid == 0 or address.gid[:8] != self.gid_bytes[:8]:
            state.ah_attr.is_global = 1
            memcpy(state.ah_attr.grh.dgid.raw, gid, 16)
            state.ah_attr.grh.sgid_index = self.gid_index
            state.ah_attr.grh.hop_limit = HOPS_MAX
        status = ibv_modify_qp(qp, &state, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN
                               | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER)
        if status != 0:
            raise OSError(status, f"{self.name} has no way to {address.gid.hex(':', 2)}: {os.strerror(status)}")
        memset(&state, 0, sizeof(state))
        state.qp_state = IBV_QPS_RTS
        state.sq_psn = packet
        state.timeout = ack_timeout
        state.retry_cnt = retries
        state.rnr_retry = RNR_RETRIES
        state.max_rd_atomic = max(1, min(self.reads, <int>address.reads))
        status = ibv_modify_qp(qp, &state, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT
                               | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC)
        if status != 0:
            raise OSError(status, f"{self.name} can't send to {address.gid.hex(':', 2)}: {os.strerror(status)}")
        return 0

    def __dealloc__(self):
        cdef uint32_t i
        for i in range(self.n_regions):
            ibv_dereg_mr(self.regions[i])
        free(self.regions)
        if self.pd != NULL:
            ibv_dealloc_pd(self.pd)
        if self.context != NULL:
            ibv_close_device(self.context)

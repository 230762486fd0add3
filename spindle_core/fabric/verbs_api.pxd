"""libibverbs, as much of it as the fabric uses. Externs only; names and meanings are those of its manual pages."""
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t


cdef extern from "arpa/inet.h" nogil:
    uint32_t htonl(uint32_t value)
    uint32_t ntohl(uint32_t value)

cdef extern from "infiniband/verbs.h" nogil:
    const int IBV_ACCESS_LOCAL_WRITE
    const int IBV_ACCESS_REMOTE_WRITE
    const int IBV_ACCESS_REMOTE_READ
    const int IBV_ACCESS_REMOTE_ATOMIC

    const int IBV_LINK_LAYER_INFINIBAND
    const int IBV_LINK_LAYER_ETHERNET
    const int IBV_GID_TYPE_IB
    const int IBV_GID_TYPE_ROCE_V2
    const int IBV_PORT_ACTIVE
    const int IBV_ATOMIC_GLOB

    const int IBV_QPT_RC
    const int IBV_QPS_INIT
    const int IBV_QPS_RTR
    const int IBV_QPS_RTS
    const int IBV_QPS_ERR
    const int IBV_QP_STATE
    const int IBV_QP_ACCESS_FLAGS
    const int IBV_QP_PKEY_INDEX
    const int IBV_QP_PORT
    const int IBV_QP_AV
    const int IBV_QP_PATH_MTU
    const int IBV_QP_TIMEOUT
    const int IBV_QP_RETRY_CNT
    const int IBV_QP_RNR_RETRY
    const int IBV_QP_RQ_PSN
    const int IBV_QP_MAX_QP_RD_ATOMIC
    const int IBV_QP_MIN_RNR_TIMER
    const int IBV_QP_SQ_PSN
    const int IBV_QP_MAX_DEST_RD_ATOMIC
    const int IBV_QP_DEST_QPN

    const int IBV_WR_RDMA_WRITE
    const int IBV_WR_RDMA_WRITE_WITH_IMM
    const int IBV_WR_SEND
    const int IBV_WR_RDMA_READ
    const int IBV_WR_ATOMIC_CMP_AND_SWP
    const int IBV_WR_ATOMIC_FETCH_AND_ADD
    const int IBV_SEND_SIGNALED
    const int IBV_SEND_INLINE

    const int IBV_WC_SUCCESS
    const int IBV_WC_LOC_LEN_ERR
    const int IBV_WC_LOC_QP_OP_ERR
    const int IBV_WC_WR_FLUSH_ERR
    const int IBV_WC_REM_INV_REQ_ERR
    const int IBV_WC_REM_ACCESS_ERR
    const int IBV_WC_REM_OP_ERR
    const int IBV_WC_RETRY_EXC_ERR
    const int IBV_WC_RNR_RETRY_EXC_ERR
    const int IBV_WC_RECV_RDMA_WITH_IMM

    cdef union ibv_gid:
        uint8_t raw[16]

    cdef struct ibv_gid_entry:
        ibv_gid gid
        uint32_t gid_type

    cdef struct ibv_device:
        pass

    cdef struct ibv_context:
        pass

    cdef struct ibv_pd:
        pass

    cdef struct ibv_comp_channel:
        int fd

    cdef struct ibv_cq:
        pass

    cdef struct ibv_srq:
        pass

    cdef struct ibv_mr:
        uint32_t lkey
        uint32_t rkey

    cdef struct ibv_qp:
        uint32_t qp_num

    cdef struct ibv_device_attr:
        int max_qp_wr
        int max_cqe
        int max_qp_rd_atom
        int max_qp_init_rd_atom
        int atomic_cap

    cdef struct ibv_port_attr:
        int state
        int active_mtu
        int gid_tbl_len
        uint32_t max_msg_sz
        uint16_t lid
        uint8_t link_layer

    cdef struct ibv_qp_cap:
        uint32_t max_send_wr
        uint32_t max_recv_wr
        uint32_t max_send_sge
        uint32_t max_recv_sge
        uint32_t max_inline_data

    cdef struct ibv_qp_init_attr:
        ibv_cq *send_cq
        ibv_cq *recv_cq
        ibv_srq *srq
        ibv_qp_cap cap
        int qp_type
        int sq_sig_all

    cdef struct ibv_global_route:
        ibv_gid dgid
        uint8_t sgid_index
        uint8_t hop_limit

    cdef struct ibv_ah_attr:
        ibv_global_route grh
        uint16_t dlid
        uint8_t is_global
        uint8_t port_num

    cdef struct ibv_qp_attr:
        int qp_state
        int path_mtu
        uint32_t rq_psn
        uint32_t sq_psn
        uint32_t dest_qp_num
        unsigned int qp_access_flags
        ibv_ah_attr ah_attr
        uint16_t pkey_index
        uint8_t max_rd_atomic
        uint8_t max_dest_rd_atomic
        uint8_t min_rnr_timer
        uint8_t port_num
        uint8_t timeout
        uint8_t retry_cnt
        uint8_t rnr_retry

    cdef struct ibv_sge:
        uint64_t addr
        uint32_t length
        uint32_t lkey

    # The parts of ibv_send_wr.wr have no names in C; nothing here may declare a variable of theirs.
    cdef struct part_rdma:
        uint64_t remote_addr
        uint32_t rkey

    cdef struct part_atomic:
        uint64_t remote_addr
        uint64_t compare_add
        uint64_t swap
        uint32_t rkey

    cdef union part_wr:
        part_rdma rdma
        part_atomic atomic

    cdef struct ibv_send_wr:
        uint64_t wr_id
        ibv_send_wr *next
        ibv_sge *sg_list
        int num_sge
        int opcode
        unsigned int send_flags
        uint32_t imm_data
        part_wr wr

    cdef struct ibv_recv_wr:
        uint64_t wr_id
        ibv_recv_wr *next
        ibv_sge *sg_list
        int num_sge

    cdef struct ibv_wc:
        uint64_t wr_id
        int status
        int opcode
        uint32_t byte_len
        uint32_t imm_data
        unsigned int wc_flags

    int ibv_fork_init()
    ibv_device **ibv_get_device_list(int *n)
    void ibv_free_device_list(ibv_device **devices)
    const char *ibv_get_device_name(ibv_device *device)
    ibv_context *ibv_open_device(ibv_device *device)
    int ibv_close_device(ibv_context *context)
    int ibv_query_device(ibv_context *context, ibv_device_attr *attributes)
    int ibv_query_port(ibv_context *context, uint8_t port, ibv_port_attr *attributes)
    int ibv_query_gid_ex(ibv_context *context, uint32_t port, uint32_t index, ibv_gid_entry *entry, uint32_t flags)
    ibv_pd *ibv_alloc_pd(ibv_context *context)
    int ibv_dealloc_pd(ibv_pd *pd)
    ibv_mr *ibv_reg_mr(ibv_pd *pd, void *address, size_t length, int access)
    int ibv_dereg_mr(ibv_mr *mr)
    ibv_comp_channel *ibv_create_comp_channel(ibv_context *context)
    int ibv_destroy_comp_channel(ibv_comp_channel *channel)
    ibv_cq *ibv_create_cq(ibv_context *context, int n, void *cq_context, ibv_comp_channel *channel, int vector)
    int ibv_destroy_cq(ibv_cq *cq)
    int ibv_req_notify_cq(ibv_cq *cq, int solicited_only)
    int ibv_get_cq_event(ibv_comp_channel *channel, ibv_cq **cq, void **cq_context)
    void ibv_ack_cq_events(ibv_cq *cq, unsigned int n)
    int ibv_poll_cq(ibv_cq *cq, int n, ibv_wc *found)
    ibv_qp *ibv_create_qp(ibv_pd *pd, ibv_qp_init_attr *attributes)
    int ibv_modify_qp(ibv_qp *qp, ibv_qp_attr *attributes, int mask)
    int ibv_destroy_qp(ibv_qp *qp)
    int ibv_post_send(ibv_qp *qp, ibv_send_wr *first, ibv_send_wr **bad)
    int ibv_post_recv(ibv_qp *qp, ibv_recv_wr *first, ibv_recv_wr **bad)

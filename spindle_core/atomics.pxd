"""The accesses of atomics.h, for cimport."""
from libc.stdint cimport uint32_t, uint64_t


cdef extern from "atomics.h" nogil:
    uint64_t u64_load_acquire(const uint64_t *p) noexcept
    uint64_t u64_load_relaxed(const uint64_t *p) noexcept
    void u64_store_release(uint64_t *p, uint64_t v) noexcept
    void u64_store_relaxed(uint64_t *p, uint64_t v) noexcept
    uint64_t u64_fetch_add_acq_rel(uint64_t *p, uint64_t v) noexcept
    uint64_t u64_fetch_or_acq_rel(uint64_t *p, uint64_t v) noexcept
    uint64_t u64_exchange_acquire(uint64_t *p, uint64_t v) noexcept
    uint64_t u64_compare_swap_acq_rel(uint64_t *p, uint64_t expected, uint64_t desired) noexcept
    uint32_t u32_load_acquire(const uint32_t *p) noexcept
    uint32_t u32_load_relaxed(const uint32_t *p) noexcept
    void u32_store_release(uint32_t *p, uint32_t v) noexcept
    void u32_store_relaxed(uint32_t *p, uint32_t v) noexcept
    uint32_t u32_fetch_add_acq_rel(uint32_t *p, uint32_t v) noexcept
    uint32_t u32_exchange_acquire(uint32_t *p, uint32_t v) noexcept
    void fence_store_load() noexcept
    void fence_load_load() noexcept
    void fence_store_store() noexcept
    void cpu_relax() noexcept
    void prefetch_line(const void *p) noexcept
    uint64_t monotonic_ns() noexcept
    uint64_t realtime_ns() noexcept
    uint64_t thread_ns() noexcept

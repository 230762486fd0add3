/* Every atomic access of the project, with the memory order in its name.
 *
 * No other file spells a memory order. A synchronising pair is one *_store_release and one *_load_acquire of the
 * same variable; the comment at each names its partner. Of the stand-alone fences, fence_store_load() separates
 * "I published" from "is the peer asleep?" (and its mirror on the sleeper's side), where a store must be ordered
 * before a later load; the other two are for seqlocks.
 */
#ifndef SPINDLE_ATOMICS_H
#define SPINDLE_ATOMICS_H

#include <stdint.h>
#include <time.h>

static inline uint64_t u64_load_acquire(const uint64_t *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
static inline uint64_t u64_load_relaxed(const uint64_t *p) { return __atomic_load_n(p, __ATOMIC_RELAXED); }
static inline void u64_store_release(uint64_t *p, uint64_t v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
static inline void u64_store_relaxed(uint64_t *p, uint64_t v) { __atomic_store_n(p, v, __ATOMIC_RELAXED); }
static inline uint64_t u64_fetch_add_acq_rel(uint64_t *p, uint64_t v) {
    return __atomic_fetch_add(p, v, __ATOMIC_ACQ_REL);
}
static inline uint64_t u64_fetch_or_acq_rel(uint64_t *p, uint64_t v) {
    return __atomic_fetch_or(p, v, __ATOMIC_ACQ_REL);
}
static inline uint64_t u64_exchange_acquire(uint64_t *p, uint64_t v) {
    return __atomic_exchange_n(p, v, __ATOMIC_ACQUIRE);
}
/* Returns the value found; the exchange happened when that equals `expected`. */
static inline uint64_t u64_compare_swap_acq_rel(uint64_t *p, uint64_t expected, uint64_t desired) {
    __atomic_compare_exchange_n(p, &expected, desired, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    return expected;
}

static inline uint32_t u32_load_acquire(const uint32_t *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
static inline uint32_t u32_load_relaxed(const uint32_t *p) { return __atomic_load_n(p, __ATOMIC_RELAXED); }
static inline void u32_store_release(uint32_t *p, uint32_t v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
static inline void u32_store_relaxed(uint32_t *p, uint32_t v) { __atomic_store_n(p, v, __ATOMIC_RELAXED); }
static inline uint32_t u32_fetch_add_acq_rel(uint32_t *p, uint32_t v) {
    return __atomic_fetch_add(p, v, __ATOMIC_ACQ_REL);
}
static inline uint32_t u32_exchange_acquire(uint32_t *p, uint32_t v) {
    return __atomic_exchange_n(p, v, __ATOMIC_ACQUIRE);
}

/* Dekker's fence: my store above is visible to every core before my load below is made. */
static inline void fence_store_load(void) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
/* Seqlock reader: the loads above (the data) are made before the loads below (the second look at the guard). */
static inline void fence_load_load(void) { __atomic_thread_fence(__ATOMIC_ACQUIRE); }
/* Seqlock writer: the guard's store above is visible before the stores below (the data it warns of). */
static inline void fence_store_store(void) { __atomic_thread_fence(__ATOMIC_RELEASE); }

static inline void cpu_relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

/* Has a line fetched that is read soon. Any address will do. */
static inline void prefetch_line(const void *p) { __builtin_prefetch(p); }

static inline uint64_t monotonic_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Processor time that the calling thread has used. A system call. */
static inline uint64_t thread_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline uint64_t realtime_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

#endif

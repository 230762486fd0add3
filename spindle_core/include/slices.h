/* How soon a thread runs after it is woken: its time slice (Linux 6.12 and later), its nice value, and a real-time
   priority. sched_setattr(2), sched(7). */
#ifndef SPINDLE_SLICES_H
#define SPINDLE_SLICES_H

#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Of the system, with a name of our own: glibc has none before 2.41. */
struct spindle_sched_attr {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime_ns, deadline_ns, period_ns;
};

enum { SPINDLE_POLICY_NORMAL = 0, SPINDLE_POLICY_RR = 2, SPINDLE_POLICY_BATCH = 3, SPINDLE_RESET_ON_FORK = 1 };
enum { SPINDLE_TOOK_SLICE = 1, SPINDLE_TOOK_NICE = 2, SPINDLE_TOOK_REALTIME = 4 };

/* What the calling thread has when it asks for nothing, and the real-time priority that it asked for and has; 0: none. */
struct spindle_turns {
    uint32_t policy, realtime;
    int32_t nice;
    int refused;                 /* it may have no real-time priority: not asked for again */
    uint64_t flags;              /* SPINDLE_RESET_ON_FORK: what it asks for is for itself, not for what it starts */
};

static inline int spindle_get_attr(struct spindle_sched_attr *attr) {
    memset(attr, 0, sizeof *attr);
    return syscall(SYS_sched_getattr, 0, attr, (unsigned)sizeof *attr, 0u) == 0;
}

static inline int spindle_set_attr(struct spindle_sched_attr *attr) {
    attr->size = sizeof *attr;
    attr->flags &= SPINDLE_RESET_ON_FORK;
    return syscall(SYS_sched_setattr, 0, attr, 0u) == 0;
}

/* 0: somebody has given this thread a policy (real time, idle) that isn't ours to change. */
static inline int spindle_may_change(const struct spindle_turns *turns, const struct spindle_sched_attr *attr) {
    return attr->policy == SPINDLE_POLICY_NORMAL || attr->policy == SPINDLE_POLICY_BATCH
           || (turns->realtime && attr->policy == SPINDLE_POLICY_RR && attr->priority == turns->realtime);
}

/* What the calling thread has now is what it has when it asks for nothing. */
static inline void spindle_note_turns(struct spindle_turns *turns) {
    struct spindle_sched_attr attr;
    memset(turns, 0, sizeof *turns);
    if (spindle_get_attr(&attr) && spindle_may_change(turns, &attr)) {
        turns->policy = attr.policy;
        turns->nice = attr.nice;
    }
}

/* The calling thread's slice from now on, 0: the system's, and its nice value, where this process may have that. Which
   of the two the kernel took. */
static inline int spindle_take_turns(struct spindle_turns *turns, uint64_t slice_ns, int nice) {
    struct spindle_sched_attr attr;
    int32_t before;
    if (!spindle_get_attr(&attr) || !spindle_may_change(turns, &attr))
        return 0;
    nice = nice < -20 ? -20 : nice > 19 ? 19 : nice;
    before = turns->realtime ? turns->nice : attr.nice;
    attr.policy = turns->policy;
    attr.priority = 0;
    attr.runtime_ns = slice_ns;
    attr.nice = nice;
    attr.flags |= turns->flags;
    if (!spindle_set_attr(&attr)) {
        attr.nice = before;
        if (!spindle_set_attr(&attr))
            return 0;
    }
    turns->realtime = 0;
    if (!spindle_get_attr(&attr))
        return 0;
    return (!slice_ns || attr.runtime_ns == slice_ns ? SPINDLE_TOOK_SLICE : 0)  /* older kernels take it and say 0 */
           | (nice != before && attr.nice == nice ? SPINDLE_TOOK_NICE : 0);
}

/* Before all threads without a real-time priority, where this process may have that; otherwise as above. It runs at
   once when it is woken, and beside others of its priority in turns. */
static inline int spindle_be_prompt(struct spindle_turns *turns, uint64_t slice_ns, int nice, uint32_t realtime) {
    struct spindle_sched_attr attr;
    if (!spindle_get_attr(&attr) || !spindle_may_change(turns, &attr))
        return 0;
    if (realtime && !turns->refused) {
        attr.flags |= turns->flags;
        attr.policy = SPINDLE_POLICY_RR;
        attr.priority = realtime;
        attr.nice = 0;
        attr.runtime_ns = 0;
        if (spindle_set_attr(&attr)) {
            turns->realtime = realtime;
            return SPINDLE_TOOK_REALTIME;
        }
        turns->refused = 1;
    }
    return spindle_take_turns(turns, slice_ns, nice);
}

/* It may have that priority, as far as is known, and hasn't. */
static inline int spindle_can_be_realtime(const struct spindle_turns *turns, uint32_t realtime) {
    return realtime && !turns->realtime && !turns->refused;
}

static inline int spindle_be_usual(struct spindle_turns *turns) {
    return spindle_take_turns(turns, 0, turns->nice);
}

#endif

/* The time slice (Linux 6.12 and later) and the nice value of a thread of the normal policies: sched_setattr(2). */
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

enum { SPINDLE_POLICY_NORMAL = 0, SPINDLE_POLICY_BATCH = 3, SPINDLE_RESET_ON_FORK = 1 };

static inline int spindle_get_attr(struct spindle_sched_attr *attr) {
    memset(attr, 0, sizeof *attr);
    return syscall(SYS_sched_getattr, 0, attr, (unsigned)sizeof *attr, 0u) == 0;
}

enum { SPINDLE_TOOK_SLICE = 1, SPINDLE_TOOK_NICE = 2 };

/* The calling thread's nice value; 0 if it can't be asked for. */
static inline int spindle_nice(void) {
    struct spindle_sched_attr attr;
    return spindle_get_attr(&attr) ? attr.nice : 0;
}

/* The calling thread's slice from now on, 0: the system's, and its nice value, where this process may have that;
   everything else stays. Which of the two the kernel took. A thread of another policy (real time, idle) keeps what it
   has. */
static inline int spindle_ask_scheduler(uint64_t slice_ns, int nice) {
    struct spindle_sched_attr attr;
    int before;
    if (!spindle_get_attr(&attr) || (attr.policy != SPINDLE_POLICY_NORMAL && attr.policy != SPINDLE_POLICY_BATCH))
        return 0;
    before = attr.nice;
    attr.size = sizeof attr;
    attr.flags &= SPINDLE_RESET_ON_FORK;
    attr.runtime_ns = slice_ns;
    attr.nice = nice < -20 ? -20 : nice > 19 ? 19 : nice;
    if (syscall(SYS_sched_setattr, 0, &attr, 0u) != 0) {
        attr.nice = before;
        if (syscall(SYS_sched_setattr, 0, &attr, 0u) != 0)
            return 0;
    }
    if (!spindle_get_attr(&attr))
        return 0;
    return (!slice_ns || attr.runtime_ns == slice_ns ? SPINDLE_TOOK_SLICE : 0)  /* older kernels take it and say 0 */
           | (nice != before && attr.nice == nice ? SPINDLE_TOOK_NICE : 0);
}

#endif

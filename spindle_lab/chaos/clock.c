/* Makes the wall clock wrong by SPINDLE_CHAOS_CLOCK_S seconds, for a process that is started with this in LD_PRELOAD.
 *
 * Why not a namespace: those of the kernel have the monotonic clock only, and hosts differ in the other one.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static time_t wrong_by_s;
static int (*clock_gettime_of_libc)(clockid_t, struct timespec *);

__attribute__((constructor)) static void attach(void) {
    const char *seconds = getenv("SPINDLE_CHAOS_CLOCK_S");
    clock_gettime_of_libc = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    if (seconds)
        wrong_by_s = atoll(seconds);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = clock_gettime_of_libc ? clock_gettime_of_libc(clock, now) : (int)syscall(SYS_clock_gettime, clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += wrong_by_s;
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec precise;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &precise))
        return -1;
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now) {
    struct timespec precise;
    if (clock_gettime(CLOCK_REALTIME, &precise))
        return -1;
    if (now)
        *now = precise.tv_sec;
    return precise.tv_sec;
}

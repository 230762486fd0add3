/* Preloaded: an event of a completion channel is found at the second look that could find it, not at the first. A device
 * adds a completion before it tells of it, and on a busy machine much may happen in between. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <stddef.h>

struct channel { /* as far as it matters here */
    void *context;
    int fd;
};

int ibv_get_cq_event(struct channel *channel, void **queue, void **context)
{
    static int (*really)(struct channel *, void **, void **);
    static _Thread_local int looked;
    struct pollfd there = {.fd = channel->fd, .events = POLLIN};

    if (!really)
        really = dlsym(dlopen("libibverbs.so.1", RTLD_LAZY | RTLD_NOLOAD), "ibv_get_cq_event");
    if (poll(&there, 1, 0) != 1 || (looked = !looked)) {
        errno = EAGAIN;
        return -1;
    }
    return really(channel, queue, context);
}

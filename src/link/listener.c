/* Accept connections. Who they are is for link.c to find out. Loop's thread, but for open. */
#include "link/link.h"

#include "base/clock.h"
#include "base/sock.h"

#include <string.h>
#include <sys/epoll.h>

#define MAX_GUESTS 1024 /* connections whose handshake is not over */
#define PAUSE_MS 100    /* after accept failed, as when descriptors are short */

static void on_pause_over(void *context)
{
    struct ddi_links *links = context;

    if (links->listener.fd >= 0) {
        (void)ddi_loop_watch(links->config.loop, &links->listener, EPOLLIN, NULL);
    }
}

static void pause_listener(struct ddi_links *links)
{
    ddi_loop_unwatch(links->config.loop, &links->listener);
    links->listener_timer = (struct ddi_timer){.fn = on_pause_over, .context = links};
    ddi_loop_set_timer(links->config.loop, &links->listener_timer, ddi_deadline_ns(PAUSE_MS));
}

static void welcome_guest(struct ddi_links *links, int fd, const struct ddi_addr *peer)
{
    struct ddi_link *link;

    if (links->guest_count >= MAX_GUESTS) {
        ddi_log(links->config.log, DD_LOG_WARNING,
                "refused a connection: %d handshakes are running", MAX_GUESTS);
        ddi_sock_close(&fd);
        return;
    }
    link = ddi_link_create(links, false, 0);
    if (link == NULL) {
        ddi_log(links->config.log, DD_LOG_ERROR, "refused a connection: out of memory");
        ddi_sock_close(&fd);
        return;
    }
    links->guest_count++;
    ddi_mutex_lock(&links->mu);
    link->refs = 1; /* the loop's; nobody waits for it */
    link->next = links->all;
    links->all = link;
    ddi_mutex_unlock(&links->mu);
    ddi_link_start_server(link, fd, peer);
}

static void on_connection(void *context, uint32_t events)
{
    struct ddi_links *links = context;

    (void)events;
    for (;;) {
        struct ddi_addr peer;
        dd_error err = {0};
        int fd;
        dd_status st = ddi_sock_accept(links->listener.fd, &fd, &peer, &err);

        if (st == DD_OK) {
            welcome_guest(links, fd, &peer);
            continue;
        }
        if (st != DDI_AGAIN) {
            ddi_log(links->config.log, DD_LOG_WARNING, "%s", err.text);
            pause_listener(links);
        }
        return;
    }
}

struct watch_call {
    struct ddi_links *links;
    dd_error *err;
    dd_status status;
};

static void watch_listener(void *context)
{
    struct watch_call *call = context;

    call->status = ddi_loop_watch(call->links->config.loop, &call->links->listener, EPOLLIN,
                                  call->err);
}

dd_status ddi_links_listen(struct ddi_links *links, const char *address, dd_error *err)
{
    struct ddi_addr addr;
    struct watch_call call = {.links = links, .err = err};
    size_t count;
    int fd;
    dd_status st = ddi_addr_resolve(address, &addr, 1, &count, err);

    if (st == DD_OK) {
        st = ddi_sock_listen(&addr, address, &fd, err);
    }
    if (st != DD_OK) {
        return st;
    }
    links->listener = (struct ddi_watch){.fd = fd, .fn = on_connection, .context = links};
    ddi_loop_call(links->config.loop, watch_listener, &call);
    return call.status;
}

void ddi_links_address(struct ddi_links *links, char text[DDI_ADDR_TEXT])
{
    struct ddi_addr addr;

    text[0] = '\0';
    if (links->listener.fd >= 0 && ddi_sock_name(links->listener.fd, &addr, NULL) == DD_OK) {
        ddi_addr_text(&addr, text);
    }
}

void ddi_listener_close(struct ddi_links *links)
{
    ddi_loop_unwatch(links->config.loop, &links->listener);
    ddi_loop_clear_timer(links->config.loop, &links->listener_timer);
    ddi_sock_close(&links->listener.fd);
}

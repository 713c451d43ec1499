/* The links of an engine: open, find, close. The handshake and the control connections run on the
 * loop's thread; callers wait here, always with a deadline. */
#ifndef DDI_LINKS_H
#define DDI_LINKS_H

#include "link/peer.h"
#include "transport/tcp.h"

struct ddi_links;
struct ddi_link;

struct ddi_links_config {
    struct ddi_identity identity;
    struct ddi_loop *loop;
    struct ddi_tcp *tcp;
    const struct ddi_log *log;
    void *owner; /* for the transport's ddi_owner_ops; outlives the links */
};

dd_status ddi_links_create(const struct ddi_links_config *config, struct ddi_links **out,
                           dd_error *err);

/* Listen at "host:port"; once. Fails as ddi_addr_resolve and ddi_sock_listen. */
dd_status ddi_links_listen(struct ddi_links *links, const char *address, dd_error *err);

/* Write where we listen, "" if we do not. */
void ddi_links_address(struct ddi_links *links, char text[DDI_ADDR_TEXT]);

/* See dd_link_open and dd_link_close. */
dd_status ddi_links_open(struct ddi_links *links, const dd_target *targets, size_t n,
                         dd_status *results, uint32_t timeout_ms, dd_error *err);
dd_status ddi_links_close(struct ddi_links *links, const dd_target *targets, size_t n,
                          dd_status *results, uint32_t timeout_ms, bool force, dd_error *err);

/* Find a link for one transfer; give it back with ddi_links_done. An orderly unlink waits for it.
 * Fails: DD_NOT_LINKED. */
dd_status ddi_links_use(struct ddi_links *links, uint64_t cluster_id, struct ddi_link **link,
                        struct ddi_channel **channel, dd_error *err);
void ddi_links_done(struct ddi_links *links, struct ddi_link *link);

uint64_t ddi_links_count(struct ddi_links *links); /* linked now */

/* Close the listener and end all links; transfers end with `reason`. New ones are refused. */
void ddi_links_stop(struct ddi_links *links, const dd_error *reason);

/* Stopped, and nobody uses a link any more. NULL is fine. */
void ddi_links_destroy(struct ddi_links *links);

#endif

/* Network addresses: text <-> socket addresses. "host:port" and "[v6]:port", nothing guessed. */
#ifndef DDI_ADDR_H
#define DDI_ADDR_H

#include "base/status.h"

#include <sys/socket.h>

#define DDI_ADDR_TEXT 128

struct ddi_addr {
    struct sockaddr_storage storage;
    socklen_t len;
};

/* Parse and resolve "host:port" to at most `max` addresses in the resolver's order. Host names go
 * through the system's resolver, which may block; numeric addresses never do.
 * Fails: DD_INVALID naming the text and what is wrong with it; DD_LINK_FAILED: name not found. */
dd_status ddi_addr_resolve(const char *text, struct ddi_addr *out, size_t max, size_t *count,
                           dd_error *err);

/* Parse a numeric host without port, as a source address (port 0). DD_INVALID. */
dd_status ddi_addr_host(const char *text, struct ddi_addr *out, dd_error *err);

/* Write "1.2.3.4:5" or "[::1]:5". */
void ddi_addr_text(const struct ddi_addr *addr, char text[DDI_ADDR_TEXT]);

#endif

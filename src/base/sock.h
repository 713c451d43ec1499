/* TCP sockets: non-blocking, close-on-exec, no signals; waiting only with a deadline. */
#ifndef DDI_SOCK_H
#define DDI_SOCK_H

#include "base/addr.h"

#include <stdbool.h>

#include <stdint.h>
#include <sys/uio.h>

/* Listen at exactly this address (an IPv6 wildcard does not take IPv4). `shown` is for the text.
 * Fails: DD_FAILED naming the address and the option to change. */
dd_status ddi_sock_listen(const struct ddi_addr *addr, const char *shown, int *fd, dd_error *err);

/* Begin to connect; `local` may be NULL. DD_OK: connected or on the way, wait for writability and
 * ask ddi_sock_connected. A local address that this host does not have is left out, *local_used
 * says so. Fails: DD_LINK_FAILED. */
dd_status ddi_sock_dial(const struct ddi_addr *addr, const struct ddi_addr *local, bool *local_used,
                        int *fd, dd_error *err);
dd_status ddi_sock_connected(int fd, const struct ddi_addr *addr, dd_error *err);

/* Small messages leave at once; congestion control by name, "" for the system's. */
void ddi_sock_tune(int fd, const char *congestion);

/* Accept one connection. DDI_AGAIN when there is none. DD_FAILED otherwise. */
dd_status ddi_sock_accept(int listener, int *fd, struct ddi_addr *peer, dd_error *err);

dd_status ddi_sock_name(int fd, struct ddi_addr *out, dd_error *err);

/* Wait until fd has one of poll(2)'s `events`, or an error. DD_TIMEOUT without text. */
dd_status ddi_sock_wait(int fd, short events, uint64_t deadline_ns);

/* Send or receive exactly n bytes. Fails without text: DD_TIMEOUT, DD_NOT_LINKED (closed or reset;
 * *system_error says how, 0 for an orderly close). */
dd_status ddi_sock_send(int fd, const void *data, size_t n, uint64_t deadline_ns,
                        int *system_error);
dd_status ddi_sock_receive(int fd, void *data, size_t n, uint64_t deadline_ns, int *system_error);

/* Wake whoever waits on fd; it stays open. */
void ddi_sock_shutdown(int fd);

void ddi_sock_close(int *fd); /* -1 is fine; sets -1 */

#endif

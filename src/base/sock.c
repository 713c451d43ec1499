/* TCP sockets. */
#include "base/sock.h"

#include "base/clock.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#define LISTEN_BACKLOG 1024

static int open_socket(const struct ddi_addr *addr)
{
    return socket(addr->storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
}

dd_status ddi_sock_listen(const struct ddi_addr *addr, const char *shown, int *fd, dd_error *err)
{
    const int on = 1;
    int sock = open_socket(addr);

    if (sock < 0) {
        return ddi_fail_system(err, DD_FAILED, errno, "cannot listen at %s", shown);
    }
    (void)setsockopt(sock, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (addr->storage.ss_family == AF_INET6) {
        (void)setsockopt(sock, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof(on));
    }
    if (bind(sock, (const struct sockaddr *)&addr->storage, addr->len) != 0 ||
        listen(sock, LISTEN_BACKLOG) != 0) {
        int code = errno;

        (void)close(sock);
        return ddi_fail_system(err, DD_FAILED, code,
                               "cannot listen at %s (option datadist.listen, llm.listenIpInfo in "
                               "Python; port 0 takes a free one)",
                               shown);
    }
    *fd = sock;
    return DD_OK;
}

dd_status ddi_sock_dial(const struct ddi_addr *addr, const struct ddi_addr *local, bool *local_used,
                        int *fd, dd_error *err)
{
    char text[DDI_ADDR_TEXT];
    int sock = open_socket(addr);

    ddi_addr_text(addr, text);
    if (sock < 0) {
        return ddi_fail_system(err, DD_LINK_FAILED, errno, "cannot connect to %s", text);
    }
    *local_used = local != NULL && local->storage.ss_family == addr->storage.ss_family &&
                  bind(sock, (const struct sockaddr *)&local->storage, local->len) == 0;
    if (connect(sock, (const struct sockaddr *)&addr->storage, addr->len) != 0 &&
        errno != EINPROGRESS) {
        int code = errno;

        (void)close(sock);
        return ddi_fail_system(err, DD_LINK_FAILED, code, "cannot connect to %s", text);
    }
    *fd = sock;
    return DD_OK;
}

dd_status ddi_sock_connected(int fd, const struct ddi_addr *addr, dd_error *err)
{
    char text[DDI_ADDR_TEXT];
    int code = 0;
    socklen_t len = sizeof(code);

    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &code, &len) != 0) {
        code = errno;
    }
    if (code == 0) {
        return DD_OK;
    }
    ddi_addr_text(addr, text);
    return ddi_fail_system(err, DD_LINK_FAILED, code, "cannot connect to %s", text);
}

void ddi_sock_tune(int fd, const char *congestion)
{
    const int on = 1;

    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    if (congestion[0] != '\0') {
        (void)setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, congestion,
                         (socklen_t)strlen(congestion));
    }
}

dd_status ddi_sock_accept(int listener, int *fd, struct ddi_addr *peer, dd_error *err)
{
    int sock;

    peer->len = sizeof(peer->storage);
    sock = accept4(listener, (struct sockaddr *)&peer->storage, &peer->len,
                   SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (sock >= 0) {
        *fd = sock;
        return DD_OK;
    }
    if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) {
        return DDI_AGAIN;
    }
    return ddi_fail_system(err, DD_FAILED, errno, "cannot accept a connection");
}

dd_status ddi_sock_name(int fd, struct ddi_addr *out, dd_error *err)
{
    out->len = sizeof(out->storage);
    if (getsockname(fd, (struct sockaddr *)&out->storage, &out->len) != 0) {
        return ddi_fail_system(err, DD_FAILED, errno, "cannot read the address of a socket");
    }
    return DD_OK;
}

dd_status ddi_sock_wait(int fd, short events, uint64_t deadline_ns)
{
    struct pollfd item = {.fd = fd, .events = events};
    int n;

    do {
        n = poll(&item, 1, ddi_left_ms(deadline_ns));
    } while (n < 0 && errno == EINTR);
    return n > 0 ? DD_OK : DD_TIMEOUT;
}

dd_status ddi_sock_send(int fd, const void *data, size_t n, uint64_t deadline_ns, int *system_error)
{
    const uint8_t *at = data;

    while (n > 0) {
        ssize_t sent = send(fd, at, n, MSG_NOSIGNAL | MSG_DONTWAIT);

        if (sent >= 0) {
            at += sent;
            n -= (size_t)sent;
        } else if (errno == EAGAIN) {
            if (ddi_sock_wait(fd, POLLOUT, deadline_ns) != DD_OK) {
                return DD_TIMEOUT;
            }
        } else if (errno != EINTR) {
            *system_error = errno;
            return DD_NOT_LINKED;
        }
    }
    return DD_OK;
}

dd_status ddi_sock_receive(int fd, void *data, size_t n, uint64_t deadline_ns, int *system_error)
{
    uint8_t *at = data;

    while (n > 0) {
        ssize_t got;

        /* Wait first: the caller has just asked and the answer is rarely there already. */
        if (ddi_sock_wait(fd, POLLIN, deadline_ns) != DD_OK) {
            return DD_TIMEOUT;
        }
        got = recv(fd, at, n, MSG_DONTWAIT);
        if (got > 0) {
            at += got;
            n -= (size_t)got;
        } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
            *system_error = got == 0 ? 0 : errno;
            return DD_NOT_LINKED;
        }
    }
    return DD_OK;
}

void ddi_sock_shutdown(int fd)
{
    (void)shutdown(fd, SHUT_RDWR);
}

void ddi_sock_close(int *fd)
{
    if (*fd >= 0) {
        (void)close(*fd);
        *fd = -1;
    }
}

/* Text <-> socket addresses. */
#include "base/addr.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* Split "host:port" or "[v6]:port"; host without brackets. */
static dd_status split(const char *text, char *host, size_t host_size, const char **port,
                       dd_error *err)
{
    const char *begin = text;
    const char *end;
    size_t len;

    if (text[0] == '[') {
        begin = text + 1;
        end = strchr(begin, ']');
        if (end == NULL || end[1] != ':') {
            return ddi_fail(err, DD_INVALID, "address \"%.100s\": \"]:port\" is missing", text);
        }
        *port = end + 2;
    } else {
        end = strchr(begin, ':');
        if (end == NULL) {
            return ddi_fail(err, DD_INVALID, "address \"%.100s\": \":port\" is missing", text);
        }
        if (strchr(end + 1, ':') != NULL) {
            return ddi_fail(err, DD_INVALID,
                            "address \"%.100s\": write IPv6 addresses in brackets, \"[::1]:26000\"",
                            text);
        }
        *port = end + 1;
    }
    len = (size_t)(end - begin);
    if (len == 0 || len >= host_size) {
        return ddi_fail(err, DD_INVALID,
                        "address \"%.100s\": host has %zu characters, wanted 1 to "
                        "%zu",
                        text, len, host_size - 1);
    }
    (void)memcpy(host, begin, len);
    host[len] = '\0';
    return DD_OK;
}

static dd_status check_port(const char *text, const char *port, dd_error *err)
{
    unsigned long value = 0;

    if (port[0] == '\0') {
        return ddi_fail(err, DD_INVALID, "address \"%.100s\": port is empty", text);
    }
    for (const char *at = port; *at != '\0'; at++) {
        if (*at < '0' || *at > '9') {
            return ddi_fail(err, DD_INVALID, "address \"%.100s\": port \"%.20s\" is not a number",
                            text, port);
        }
        value = value * 10 + (unsigned long)(*at - '0');
        if (value > UINT16_MAX) {
            return ddi_fail(err, DD_INVALID, "address \"%.100s\": port is above 65535", text);
        }
    }
    return DD_OK;
}

/* Whether the resolver would take a host for an IPv4 number. It then accepts "127.1", "7" or
 * "0x7f000001" too, and would dial a host that nobody wrote. */
static bool looks_like_number(const char *host)
{
    const char *label = host;

    while (*label != '\0') {
        size_t len = strcspn(label, ".");
        bool is_hex = len > 1 && label[0] == '0' && (label[1] == 'x' || label[1] == 'X');
        size_t digits = is_hex ? 2 + strspn(label + 2, "0123456789abcdefABCDEF")
                               : strspn(label, "0123456789");

        if (len > 0 && digits < len) {
            return false;
        }
        label += len;
        label += *label == '.';
    }
    return true;
}

static bool is_strange_number(const char *host)
{
    struct in_addr number;

    return looks_like_number(host) && inet_pton(AF_INET, host, &number) != 1;
}

static dd_status check_host(const char *text, const char *host, dd_error *err)
{
    for (const char *at = host; *at != '\0'; at++) {
        if (*at <= ' ') {
            return ddi_fail(err, DD_INVALID, "address \"%.100s\": blank in host \"%.100s\"", text,
                            host);
        }
    }
    if (text[0] != '[' && is_strange_number(host)) {
        return ddi_fail(err, DD_INVALID,
                        "address \"%.100s\": host \"%.100s\" is no IPv4 address, wanted four "
                        "numbers like 127.0.0.1",
                        text, host);
    }
    return DD_OK;
}

dd_status ddi_addr_resolve(const char *text, struct ddi_addr *out, size_t max, size_t *count,
                           dd_error *err)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    struct addrinfo *list = NULL;
    char host[NI_MAXHOST];
    const char *port = "";
    size_t n = 0;
    int rc;
    dd_status st = split(text, host, sizeof(host), &port, err);

    if (st == DD_OK) {
        st = check_port(text, port, err);
    }
    if (st == DD_OK) {
        st = check_host(text, host, err);
    }
    if (st != DD_OK) {
        return st;
    }
    if (text[0] == '[') {
        hints.ai_family = AF_INET6;
        hints.ai_flags |= AI_NUMERICHOST;
    }
    rc = getaddrinfo(host, port, &hints, &list);
    if (rc != 0) {
        return ddi_fail(err, text[0] == '[' ? DD_INVALID : DD_LINK_FAILED,
                        "address \"%.100s\": host \"%.100s\" not found: %s", text, host,
                        rc == EAI_SYSTEM ? "system error" : gai_strerror(rc));
    }
    for (struct addrinfo *at = list; at != NULL && n < max; at = at->ai_next) {
        if (at->ai_addrlen <= sizeof(out[n].storage)) {
            (void)memset(&out[n], 0, sizeof(out[n]));
            (void)memcpy(&out[n].storage, at->ai_addr, at->ai_addrlen);
            out[n].len = at->ai_addrlen;
            n++;
        }
    }
    freeaddrinfo(list);
    *count = n;
    return n > 0 ? DD_OK : ddi_fail(err, DD_LINK_FAILED, "address \"%.100s\": no address", text);
}

dd_status ddi_addr_host(const char *text, struct ddi_addr *out, dd_error *err)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST};
    struct addrinfo *list = NULL;

    if (is_strange_number(text) || getaddrinfo(text, NULL, &hints, &list) != 0) {
        return ddi_fail(err, DD_INVALID,
                        "local address \"%.100s\": wanted a numeric host without "
                        "port",
                        text);
    }
    (void)memset(out, 0, sizeof(*out));
    (void)memcpy(&out->storage, list->ai_addr, list->ai_addrlen);
    out->len = list->ai_addrlen;
    freeaddrinfo(list);
    return DD_OK;
}

void ddi_addr_text(const struct ddi_addr *addr, char text[DDI_ADDR_TEXT])
{
    char host[96];
    char port[8];

    if (getnameinfo((const struct sockaddr *)&addr->storage, addr->len, host, sizeof(host), port,
                    sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
        (void)snprintf(text, DDI_ADDR_TEXT, "(no address)");
    } else if (addr->storage.ss_family == AF_INET6) {
        (void)snprintf(text, DDI_ADDR_TEXT, "[%s]:%s", host, port);
    } else {
        (void)snprintf(text, DDI_ADDR_TEXT, "%s:%s", host, port);
    }
}

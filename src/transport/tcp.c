/* The TCP transport: the engine's part, channels, and the connections that a puller uses. */
#include "transport/tcp.h"

#include "base/clock.h"
#include "base/num.h"
#include "base/sock.h"
#include "transport/tcp_channel.h"

#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DIAL_FOR_PEER_MS 3000
#define MAX_DIALS_WANTED 64

dd_status ddi_tcp_open(const struct ddi_tcp_config *config, struct ddi_tcp **out, dd_error *err)
{
    dd_status st;
    struct ddi_tcp *tcp = calloc(1, sizeof(*tcp));

    if (tcp == NULL) {
        return ddi_fail(err, DD_NO_MEMORY, "tcp transport");
    }
    tcp->config = *config;
    ddi_mutex_init(&tcp->mu, DDI_RANK_WORKERS);
    st = ddi_workers_open(config->workers, &tcp->workers, err);
    if (st != DD_OK) {
        ddi_tcp_close(tcp);
        return st;
    }
    *out = tcp;
    return DD_OK;
}

void ddi_tcp_close(struct ddi_tcp *tcp)
{
    if (tcp == NULL) {
        return;
    }
    ddi_workers_close(tcp->workers);
    for (size_t i = 0; i < DDI_TCP_MAX_LOOPS; i++) {
        ddi_loop_close(tcp->loops[i]);
    }
    ddi_mutex_fini(&tcp->mu);
    free(tcp);
}

dd_status ddi_tcp_next_loop(struct ddi_tcp *tcp, struct ddi_loop **out, dd_error *err)
{
    dd_status st = DD_OK;
    uint32_t at;

    ddi_mutex_lock(&tcp->mu);
    at = tcp->next_loop++ % tcp->config.loops;
    if (tcp->loops[at] == NULL) {
        st = ddi_loop_open("dd-bulk", &tcp->loops[at], err);
    }
    *out = tcp->loops[at];
    ddi_mutex_unlock(&tcp->mu);
    return st;
}

void ddi_tcp_channel_get(struct ddi_channel *channel)
{
    atomic_fetch_add_explicit(&channel->refs, 1, memory_order_relaxed);
}

static void free_streams(struct ddi_stream *list)
{
    while (list != NULL) {
        struct ddi_stream *next = list->next;

        ddi_sock_close(&list->fd);
        free(list);
        list = next;
    }
}

void ddi_tcp_channel_put(struct ddi_channel *channel)
{
    /* Release and acquire: what other holders wrote is seen by the one that frees. */
    if (channel == NULL ||
        atomic_fetch_sub_explicit(&channel->refs, 1, memory_order_acq_rel) != 1) {
        return;
    }
    free_streams(channel->idle);
    ddi_cond_fini(&channel->changed);
    ddi_mutex_fini(&channel->mu);
    free(channel);
}

static bool is_cut_locked(struct ddi_channel *channel, dd_error *err)
{
    if (channel->is_cut && err != NULL) {
        *err = channel->reason;
    }
    return channel->is_cut;
}

bool ddi_tcp_is_cut(struct ddi_channel *channel, dd_error *err)
{
    bool is_cut;

    ddi_mutex_lock(&channel->mu);
    is_cut = is_cut_locked(channel, err);
    ddi_mutex_unlock(&channel->mu);
    return is_cut;
}

/* A cut is a failure, whatever its reason says. */
static dd_status fail_cut(dd_error *err, const dd_error *reason)
{
    return ddi_fail(err, reason->status == DD_OK ? DD_NOT_LINKED : reason->status, "%s",
                    reason->text);
}

/* Make the failure of a read or write on a data connection a status and a text. */
static dd_status io_failed(struct ddi_channel *channel, dd_status st, int system_error,
                           const char *step, uint32_t timeout_ms, dd_error *err)
{
    dd_error reason;

    if (ddi_tcp_is_cut(channel, &reason)) {
        return fail_cut(err, &reason);
    }
    if (st == DD_TIMEOUT) {
        return ddi_fail(err, DD_TIMEOUT, "%s: no answer within %u ms (%s)", channel->name,
                        timeout_ms, step);
    }
    if (system_error != 0) {
        return ddi_fail_system(err, DD_NOT_LINKED, system_error, "peer lost: %s (%s)",
                               channel->name, step);
    }
    return ddi_fail(err, DD_NOT_LINKED, "peer lost: %s closed the data connection (%s)",
                    channel->name, step);
}

/* Read ATTACHED. The stream is in the active list, so a cut ends the wait. */
static dd_status read_attached(struct ddi_channel *channel, struct ddi_stream *stream,
                               uint64_t deadline_ns, uint32_t timeout_ms, dd_error *err)
{
    struct ddi_header header;
    uint8_t bytes[DDI_HEADER + 4];
    int code = 0;
    dd_status st = ddi_sock_receive(stream->fd, bytes, sizeof(bytes), deadline_ns, &code);

    if (st != DD_OK) {
        return io_failed(channel, st, code, "opening a data connection", timeout_ms, err);
    }
    st = ddi_decode_header(bytes, DDI_MAX_GREETING, &header, err);
    if (st == DD_OK && (header.type != DDI_ATTACHED || header.body != 4)) {
        st = ddi_fail(err, DD_LINK_FAILED, "%s refused a data connection", channel->name);
    }
    if (st == DD_OK) {
        st = ddi_decode_u32(bytes + DDI_HEADER, 4, &stream->remote_id, err);
    }
    return st;
}

/* Put a new stream into the active list, where a cut finds it. False when the channel is cut. */
static bool activate(struct ddi_channel *channel, struct ddi_stream *stream, dd_error *err)
{
    bool is_cut;

    ddi_mutex_lock(&channel->mu);
    is_cut = is_cut_locked(channel, err);
    if (!is_cut) {
        stream->next = channel->active;
        channel->active = stream;
    }
    ddi_mutex_unlock(&channel->mu);
    return !is_cut;
}

/* Begin to connect. On DD_OK the new stream is active: a cut ends every wait on it. */
static dd_status begin_dial(struct ddi_channel *channel, struct ddi_stream **out, dd_error *err)
{
    const struct ddi_tcp_peer *peer = &channel->peer;
    struct ddi_stream *stream = calloc(1, sizeof(*stream));
    bool local_used;
    dd_error reason = {0};
    dd_status st;

    if (stream == NULL) {
        return ddi_fail(err, DD_NO_MEMORY, "data connection to %s", channel->name);
    }
    st = ddi_sock_dial(&peer->remote, peer->local.len > 0 ? &peer->local : NULL, &local_used,
                       &stream->fd, err);
    if (st != DD_OK) {
        free(stream);
        return st;
    }
    if (!activate(channel, stream, &reason)) {
        ddi_sock_close(&stream->fd);
        free(stream);
        return fail_cut(err, &reason);
    }
    *out = stream;
    return DD_OK;
}

/* Connect and send ATTACH. On DD_OK the caller has an active stream. */
static dd_status dial(struct ddi_channel *channel, uint8_t user, uint64_t deadline_ns,
                      uint32_t timeout_ms, struct ddi_stream **out, dd_error *err)
{
    struct ddi_attach attach = {.version = DDI_PROTOCOL_MAX, .user = user};
    struct ddi_stream *stream = NULL;
    uint8_t bytes[DDI_HEADER + 64];
    dd_error why = {0};
    int code = 0;
    size_t n;
    dd_status st = begin_dial(channel, &stream, err);

    if (st != DD_OK) {
        return st;
    }
    st = ddi_sock_wait(stream->fd, POLLOUT, deadline_ns);
    if (st == DD_OK && ddi_sock_connected(stream->fd, &channel->peer.remote, &why) != DD_OK) {
        st = DD_NOT_LINKED;
        code = why.system_error;
    }
    if (st == DD_OK) {
        ddi_sock_tune(stream->fd, channel->tcp->config.congestion);
        (void)memcpy(attach.token, channel->peer.token, DDI_TOKEN);
        n = ddi_encode_attach(bytes, sizeof(bytes), &attach);
        st = ddi_sock_send(stream->fd, bytes, n, deadline_ns, &code);
    }
    if (st != DD_OK) {
        st = io_failed(channel, st, code, "opening a data connection", timeout_ms, err);
        ddi_tcp_checkin(channel, stream, false);
        return st;
    }
    *out = stream;
    return DD_OK;
}

/* Client's side: dial a stream of our own. */
static dd_status dial_stream(struct ddi_channel *channel, uint64_t deadline_ns, uint32_t timeout_ms,
                             struct ddi_stream **out, dd_error *err)
{
    struct ddi_stream *stream = NULL;
    dd_status st = dial(channel, 0, deadline_ns, timeout_ms, &stream, err);

    if (st != DD_OK) {
        return st;
    }
    st = read_attached(channel, stream, deadline_ns, timeout_ms, err);
    if (st != DD_OK) {
        ddi_tcp_checkin(channel, stream, false);
        return st;
    }
    *out = stream;
    return DD_OK;
}

static struct ddi_stream *pop_idle_locked(struct ddi_channel *channel)
{
    struct ddi_stream *stream = channel->idle;

    if (stream != NULL) {
        channel->idle = stream->next;
        stream->next = channel->active;
        channel->active = stream;
    }
    return stream;
}

/* Server's side: take an idle stream, or ask the client to dial one and wait for it. */
static dd_status wait_stream(struct ddi_channel *channel, uint64_t deadline_ns, uint32_t timeout_ms,
                             struct ddi_stream **out, dd_error *err)
{
    struct ddi_stream *stream = NULL;
    dd_error reason = {0};
    bool has_asked = false;
    bool is_late = false;
    bool is_cut = false;
    dd_status st = DD_OK;

    ddi_mutex_lock(&channel->mu);
    while (stream == NULL && !is_cut && !is_late) {
        is_cut = is_cut_locked(channel, &reason);
        stream = is_cut ? NULL : pop_idle_locked(channel);
        if (stream == NULL && !is_cut && !has_asked) {
            ddi_mutex_unlock(&channel->mu);
            channel->peer.ask(channel->peer.ask_context, 1);
            has_asked = true;
            ddi_mutex_lock(&channel->mu);
        } else if (stream == NULL && !is_cut) {
            is_late = ddi_cond_wait_until(&channel->changed, &channel->mu, deadline_ns);
        }
    }
    ddi_mutex_unlock(&channel->mu);
    if (is_cut) {
        return fail_cut(err, &reason);
    }
    if (stream == NULL) {
        return ddi_fail(err, DD_TIMEOUT, "%s dialled no data connection within %u ms",
                        channel->name, timeout_ms);
    }
    if (stream->remote_id == 0) {
        st = read_attached(channel, stream, deadline_ns, timeout_ms, err);
        if (st != DD_OK) {
            ddi_tcp_checkin(channel, stream, false);
            return st;
        }
    }
    *out = stream;
    return DD_OK;
}

dd_status ddi_tcp_checkout(struct ddi_channel *channel, uint32_t want, uint64_t deadline_ns,
                           uint32_t timeout_ms, struct ddi_stream **streams, uint32_t *got,
                           dd_error *err)
{
    dd_error why = {0};
    uint32_t n = 0;
    dd_status st = DD_OK;

    ddi_mutex_lock(&channel->mu);
    if (is_cut_locked(channel, &why)) {
        st = why.status;
    }
    while (st == DD_OK && n < want) {
        struct ddi_stream *stream = channel->idle;

        if (stream == NULL || stream->remote_id == 0) {
            break; /* a fresh one of the server's side: wait_stream finishes it */
        }
        streams[n++] = pop_idle_locked(channel);
    }
    ddi_mutex_unlock(&channel->mu);
    while (st == DD_OK && n < want) {
        st = channel->peer.is_client
                 ? dial_stream(channel, deadline_ns, timeout_ms, &streams[n], &why)
                 : wait_stream(channel, deadline_ns, timeout_ms, &streams[n], &why);
        if (st == DD_OK) {
            n++;
        } else if (n > 0) {
            st = DD_OK; /* fewer connections do as well */
            break;
        }
    }
    if (st != DD_OK) {
        if (err != NULL) {
            *err = why;
        }
        return why.status;
    }
    *got = n;
    return DD_OK;
}

void ddi_tcp_checkin(struct ddi_channel *channel, struct ddi_stream *stream, bool is_clean)
{
    struct ddi_stream **at;

    ddi_mutex_lock(&channel->mu);
    for (at = &channel->active; *at != stream; at = &(*at)->next) {
    }
    *at = stream->next;
    if (is_clean && !channel->is_cut) {
        stream->idle_since_ns = ddi_clock_ns();
        stream->next = channel->idle;
        channel->idle = stream;
        ddi_cond_signal(&channel->changed);
        stream = NULL;
    }
    ddi_mutex_unlock(&channel->mu);
    if (stream != NULL) {
        ddi_sock_close(&stream->fd);
        free(stream);
    }
}

static void dial_for_peer(void *context)
{
    struct ddi_channel *channel = context;
    uint32_t count;

    ddi_mutex_lock(&channel->mu);
    count = channel->is_cut ? 0 : channel->dial_count;
    channel->dial_count = 0;
    ddi_mutex_unlock(&channel->mu);
    while (count-- > 0) {
        struct ddi_stream *stream = NULL;
        dd_error err = {0};

        if (dial(channel, 1, ddi_deadline_ns(DIAL_FOR_PEER_MS), DIAL_FOR_PEER_MS, &stream, &err) !=
            DD_OK) {
            ddi_log(channel->tcp->config.log, DD_LOG_WARNING,
                    "cannot open a data connection that the peer asked for: %s", err.text);
            break;
        }
        ddi_served_open(channel, stream->fd); /* it answers from now on */
        stream->fd = -1;
        ddi_tcp_checkin(channel, stream, false);
    }
    ddi_tcp_channel_put(channel);
}

void ddi_tcp_dial_for_peer(struct ddi_channel *channel, uint32_t count)
{
    bool is_new;

    ddi_mutex_lock(&channel->mu);
    is_new = channel->dial_count == 0;
    channel->dial_count = (uint32_t)ddi_min_u64(MAX_DIALS_WANTED,
                                                (uint64_t)channel->dial_count + count);
    ddi_mutex_unlock(&channel->mu);
    if (is_new) {
        ddi_tcp_channel_get(channel);
        channel->dial_task = (struct ddi_task){.fn = dial_for_peer, .context = channel};
        ddi_workers_add(channel->tcp->workers, &channel->dial_task);
    }
}

void ddi_tcp_adopt(struct ddi_channel *channel, int fd, uint8_t user)
{
    struct ddi_stream *stream;

    ddi_sock_tune(fd, channel->tcp->config.congestion);
    if (user == 0) { /* the peer will ask, we answer */
        ddi_served_open(channel, fd);
        return;
    }
    stream = calloc(1, sizeof(*stream));
    if (stream == NULL) {
        ddi_sock_close(&fd);
        return;
    }
    stream->fd = fd;
    ddi_mutex_lock(&channel->mu);
    if (!channel->is_cut) {
        stream->idle_since_ns = ddi_clock_ns();
        stream->next = channel->idle;
        channel->idle = stream;
        ddi_cond_signal(&channel->changed);
        stream = NULL;
    }
    ddi_mutex_unlock(&channel->mu);
    if (stream != NULL) {
        ddi_sock_close(&stream->fd);
        free(stream);
    }
}

void ddi_tcp_cut(struct ddi_channel *channel, const dd_error *reason)
{
    struct ddi_stream *idle;

    ddi_mutex_lock(&channel->mu);
    if (channel->is_cut) {
        ddi_mutex_unlock(&channel->mu);
        return;
    }
    channel->is_cut = true;
    channel->reason = *reason;
    idle = channel->idle;
    channel->idle = NULL;
    for (struct ddi_stream *at = channel->active; at != NULL; at = at->next) {
        ddi_sock_shutdown(at->fd); /* wakes its user, who closes it */
    }
    ddi_served_cut_locked(channel);
    ddi_cond_broadcast(&channel->changed);
    ddi_mutex_unlock(&channel->mu);
    free_streams(idle);
}

void ddi_tcp_sweep(struct ddi_channel *channel, uint64_t now_ns)
{
    uint64_t limit_ns = channel->tcp->config.idle_ms * DDI_NS_PER_MS;
    struct ddi_stream *old = NULL;

    ddi_mutex_lock(&channel->mu);
    for (struct ddi_stream **at = &channel->idle; *at != NULL;) {
        struct ddi_stream *stream = *at;

        if (now_ns > stream->idle_since_ns && now_ns - stream->idle_since_ns > limit_ns) {
            *at = stream->next;
            stream->next = old;
            old = stream;
        } else {
            at = &stream->next;
        }
    }
    ddi_mutex_unlock(&channel->mu);
    free_streams(old);
}

dd_status ddi_tcp_channel_open(struct ddi_tcp *tcp, const struct ddi_tcp_peer *peer,
                               struct ddi_channel **out, dd_error *err)
{
    char address[DDI_ADDR_TEXT];
    struct ddi_channel *channel = calloc(1, sizeof(*channel));

    if (channel == NULL) {
        return ddi_fail(err, DD_NO_MEMORY, "link to cluster %" PRIu64, peer->cluster_id);
    }
    channel->tcp = tcp;
    channel->peer = *peer;
    channel->next_id = 1;
    channel->next_served = 1;
    atomic_init(&channel->refs, 1);
    ddi_mutex_init(&channel->mu, DDI_RANK_CHANNEL);
    ddi_cond_init(&channel->changed);
    ddi_addr_text(&peer->remote, address);
    (void)snprintf(channel->name, sizeof(channel->name), "cluster %" PRIu64 " at %s",
                   peer->cluster_id, address);
    *out = channel;
    return DD_OK;
}

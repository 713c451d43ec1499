/* One link on the loop's thread: moves bytes of the control connection, feeds the state machine in
 * peer.c, and does what it says. Decides nothing about the protocol itself. */
#include "link/link.h"

#include "base/clock.h"
#include "base/sock.h"
#include "link/admission.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#define FIRST_RETRY_MS 10
#define MAX_RETRY_MS 200

static void on_event(void *context, uint32_t events);
static void dial_next(struct ddi_link *link, const dd_error *last);

static const struct ddi_log *log_of(const struct ddi_link *link)
{
    return link->links->config.log;
}

void ddi_link_text(const struct ddi_link *link, char text[DDI_ADDR_TEXT])
{
    ddi_addr_text(&link->addrs[link->addr_at < link->addr_count ? link->addr_at : 0], text);
}

struct ddi_link *ddi_link_create(struct ddi_links *links, bool is_client, uint64_t cluster_id)
{
    struct ddi_link *link = calloc(1, sizeof(*link));

    if (link != NULL) {
        link->links = links;
        link->is_client = is_client;
        link->cluster_id = cluster_id;
        link->refs = 2;
        link->watch.fd = -1;
    }
    return link;
}

void ddi_link_put_locked(struct ddi_link *link)
{
    if (--link->refs > 0) {
        return;
    }
    for (struct ddi_link **at = &link->links->all; *at != NULL; at = &(*at)->next) {
        if (*at == link) {
            *at = link->next;
            break;
        }
    }
    ddi_tcp_channel_put(link->channel);
    free(link);
}

/* Send what is queued. An error is noticed by the next read. */
static void flush(struct ddi_link *link)
{
    while (link->output_len > 0) {
        ssize_t n = send(link->watch.fd, link->output, link->output_len,
                         MSG_NOSIGNAL | MSG_DONTWAIT);

        if (n < 0) {
            break;
        }
        link->output_len -= (size_t)n;
        (void)memmove(link->output, link->output + n, link->output_len);
    }
    if (link->watch.is_active) {
        ddi_loop_rewatch(link->links->config.loop, &link->watch,
                         link->output_len > 0 ? EPOLLIN | EPOLLOUT : EPOLLIN);
    }
}

void ddi_link_send(struct ddi_link *link, enum ddi_message_type type)
{
    uint8_t *at = link->output + link->output_len;
    size_t room = sizeof(link->output) - link->output_len;
    struct ddi_hello hello;
    size_t n;

    switch (type) {
    case DDI_HELLO:
    case DDI_WELCOME:
        ddi_peer_hello(&link->peer, &hello);
        n = ddi_encode_hello(at, room, type, &hello);
        break;
    case DDI_REFUSE:
        n = ddi_encode_refusal(at, room, type, 0, link->peer.reason.status, link->peer.reason.text);
        break;
    default:
        n = ddi_encode_empty(at, room, type, 0);
        break;
    }
    link->output_len += n; /* 0 when the peer does not read: it will be dead soon */
    flush(link);
}

/* Make the outcome known to callers and cut the data plane. */
static void publish_end(struct ddi_link *link)
{
    struct ddi_links *links = link->links;
    struct ddi_channel *channel = NULL;
    dd_error reason = link->peer.reason;
    bool stood;

    if (reason.status == DD_TIMEOUT && link->refusal.text[0] != '\0') {
        reason = link->refusal; /* why there was no answer in time */
    }

    ddi_mutex_lock(&links->mu);
    stood = link->phase == DDI_LINK_STANDS || link->phase == DDI_LINK_CLOSING;
    if (link->is_mapped) {
        (void)ddi_map_remove(&links->by_id, ddi_link_key(link->cluster_id));
        link->is_mapped = false;
    }
    if (stood) {
        links->standing--;
        channel = link->channel;
    }
    link->phase = DDI_LINK_OVER;
    link->outcome = reason;
    ddi_cond_broadcast(&links->changed);
    ddi_mutex_unlock(&links->mu);
    if (channel != NULL) {
        /* A transfer that is cut says that the link is gone, however it went. */
        if (reason.status != DD_FINALIZED) {
            reason.status = DD_NOT_LINKED;
            if (strstr(reason.text, "peer lost") == NULL) {
                ddi_error_context(&reason, "peer lost");
            }
        }
        ddi_tcp_cut(channel, &reason);
    }
}

static void log_end(struct ddi_link *link, bool stood)
{
    char text[DDI_ADDR_TEXT];

    ddi_link_text(link, text);
    if (stood) {
        ddi_log(log_of(link), DD_LOG_INFO, "link with cluster %" PRIu64 " at %s ended: %s",
                link->peer.cluster_id, text, link->peer.reason.text);
    } else if (link->is_client) {
        return; /* the caller gets it as an error */
    } else if (link->peer.role == 0) {
        ddi_log(log_of(link), DD_LOG_WARNING, "refused a connection from %s: %s", text,
                link->peer.reason.text);
    } else {
        ddi_log(log_of(link), DD_LOG_WARNING, "refused cluster %" PRIu64 " at %s: %s",
                link->peer.cluster_id, text, link->peer.reason.text);
    }
}

static void drop_loop_reference(void *context)
{
    struct ddi_link *link = context;
    struct ddi_links *links = link->links;

    ddi_mutex_lock(&links->mu);
    ddi_link_put_locked(link);
    ddi_mutex_unlock(&links->mu);
}

/* The link is over: say so, close, and let go. */
static void tear_down(struct ddi_link *link)
{
    struct ddi_links *links = link->links;
    struct ddi_link *prober = link->prober;
    bool stood = link->channel != NULL;

    if (link->is_dead) {
        return;
    }
    link->is_dead = true;
    ddi_loop_unwatch(links->config.loop, &link->watch);
    ddi_loop_clear_timer(links->config.loop, &link->timer);
    ddi_loop_clear_timer(links->config.loop, &link->probe_timer);
    ddi_loop_clear_timer(links->config.loop, &link->retry_timer);
    ddi_sock_close(&link->watch.fd);
    if (!link->is_client && !stood) {
        links->guest_count--;
    }
    if (link->probed != NULL) {
        link->probed->prober = NULL;
        link->probed = NULL;
    }
    if (link->peer.reason.text[0] != '\0') {
        log_end(link, stood);
    }
    publish_end(link);
    if (prober != NULL) {
        ddi_admission_settle(prober, false);
    }
    /* Later: functions up the stack still look at it. */
    link->start_task = (struct ddi_task){.fn = drop_loop_reference, .context = link};
    ddi_loop_post(links->config.loop, &link->start_task);
}

static void ask_to_dial(void *context, uint32_t count);

/* The handshake is through: open the data plane and tell callers. */
static bool publish_linked(struct ddi_link *link, dd_error *err)
{
    struct ddi_links *links = link->links;
    struct ddi_tcp_peer peer = {.cluster_id = link->peer.cluster_id,
                                .is_client = link->is_client,
                                .remote = link->addrs[link->addr_at],
                                .local = link->local,
                                .owner = links->config.owner,
                                .ask = ask_to_dial,
                                .ask_context = link};
    struct ddi_channel *channel;
    char text[DDI_ADDR_TEXT];

    (void)memcpy(peer.token, link->peer.token, DDI_TOKEN);
    if (ddi_tcp_channel_open(links->config.tcp, &peer, &channel, err) != DD_OK) {
        return false;
    }
    if (!link->is_client) {
        links->guest_count--;
    }
    ddi_mutex_lock(&links->mu);
    link->channel = channel;
    link->phase = DDI_LINK_STANDS;
    links->standing++;
    ddi_cond_broadcast(&links->changed);
    ddi_mutex_unlock(&links->mu);
    ddi_link_text(link, text);
    ddi_log(log_of(link), DD_LOG_INFO, "linked with cluster %" PRIu64 " at %s",
            link->peer.cluster_id, text);
    return true;
}

struct ask {
    struct ddi_link *link;
    uint32_t count;
};

static void send_dial(void *context)
{
    const struct ask *ask = context;
    struct ddi_link *link = ask->link;

    if (!link->is_dead) {
        link->output_len += ddi_encode_u32(link->output + link->output_len,
                                           sizeof(link->output) - link->output_len, DDI_DIAL, 0,
                                           ask->count);
        flush(link);
    }
}

/* Called by a puller that holds the link. */
static void ask_to_dial(void *context, uint32_t count)
{
    struct ask ask = {.link = context, .count = count};

    ddi_loop_call(ask.link->links->config.loop, send_dial, &ask);
}

static void on_timer(void *context)
{
    struct ddi_link *link = context;
    struct ddi_peer_event event = {.type = DDI_EV_TIME};

    if (link->channel != NULL) {
        ddi_tcp_sweep(link->channel, ddi_clock_ns());
    }
    ddi_link_step(link, &event);
}

void ddi_link_step(struct ddi_link *link, const struct ddi_peer_event *event)
{
    struct ddi_peer_actions actions;
    struct ddi_peer_event lost = {.type = DDI_EV_LOST};
    dd_error err;

    if (link->is_dead) {
        return;
    }
    ddi_peer_step(&link->peer, event, ddi_clock_ns(), &actions);
    if (actions.send != 0 && link->watch.fd >= 0) {
        ddi_link_send(link, actions.send);
    }
    if (actions.close) {
        tear_down(link);
        return;
    }
    if (actions.wake_ns != DDI_NEVER) {
        link->timer.fn = on_timer;
        link->timer.context = link;
        ddi_loop_set_timer(link->links->config.loop, &link->timer, actions.wake_ns);
    } else {
        ddi_loop_clear_timer(link->links->config.loop, &link->timer);
    }
    if (actions.linked && !publish_linked(link, &err)) {
        lost.error = &err;
        ddi_link_step(link, &lost);
        return;
    }
    if (actions.ask_admission) {
        ddi_admission_decide(link);
    }
}

void ddi_link_end(struct ddi_link *link, const dd_error *reason, bool say_bye)
{
    struct ddi_peer_event event = {.type = DDI_EV_LOST, .error = reason};

    if (!link->is_dead && say_bye && link->peer.state == DDI_PEER_LINKED) {
        ddi_link_send(link, DDI_BYE);
    }
    ddi_link_step(link, &event);
}

static void lose(struct ddi_link *link, int system_error, const char *what)
{
    dd_error err;
    const char *lost = link->peer.state >= DDI_PEER_LINKED ? "peer lost: " : "";
    dd_status st = link->peer.state >= DDI_PEER_LINKED ? DD_NOT_LINKED : DD_LINK_FAILED;

    if (system_error != 0) {
        (void)ddi_fail_system(&err, st, system_error, "%s%s", lost, what);
    } else {
        (void)ddi_fail(&err, st, "%s%s while %s", lost, what,
                       ddi_peer_state_name(link->peer.state));
    }
    ddi_link_end(link, &err, false);
}

/* A data connection came to the listener: give it to its link. This object was only its shell. */
static void hand_over(struct ddi_link *shell, const struct ddi_attach *attach)
{
    struct ddi_links *links = shell->links;
    struct ddi_channel *channel = NULL;
    int fd = shell->watch.fd;

    ddi_mutex_lock(&links->mu);
    for (struct ddi_link *at = links->all; at != NULL && channel == NULL; at = at->next) {
        if (!at->is_client && at->channel != NULL && at->phase != DDI_LINK_OVER &&
            memcmp(at->peer.token, attach->token, DDI_TOKEN) == 0) {
            channel = at->channel;
        }
    }
    ddi_mutex_unlock(&links->mu);
    if (channel == NULL) {
        lose(shell, 0, "data connection for a link that does not exist");
        return;
    }
    /* Links end on this thread only, so the channel stays while we hand over. */
    ddi_loop_unwatch(links->config.loop, &shell->watch);
    shell->watch.fd = -1;
    ddi_tcp_adopt(channel, fd, attach->user);
    shell->peer.reason.text[0] = '\0';
    tear_down(shell);
}

/* Decode one message and feed it. False when the link is gone. */
static bool take_message(struct ddi_link *link, const struct ddi_header *header,
                         const uint8_t *body)
{
    struct ddi_peer_event event = {.type = DDI_EV_MESSAGE,
                                   .message = (enum ddi_message_type)header->type};
    struct ddi_hello hello;
    struct ddi_refusal refusal;
    struct ddi_attach attach;
    uint32_t count;
    dd_error err = {0};
    dd_status st = DD_OK;

    switch (header->type) {
    case DDI_HELLO:
    case DDI_WELCOME:
        st = ddi_decode_hello(body, header->body, &hello, &err);
        event.hello = &hello;
        break;
    case DDI_REFUSE:
        st = ddi_decode_refusal(body, header->body, &refusal, &err);
        event.refusal = &refusal;
        break;
    case DDI_ATTACH:
        st = ddi_decode_attach(body, header->body, &attach, &err);
        if (st == DD_OK && link->peer.state == DDI_PEER_IDLE && !link->is_client) {
            hand_over(link, &attach);
            return false;
        }
        break;
    case DDI_DIAL:
        st = ddi_decode_u32(body, header->body, &count, &err);
        if (st == DD_OK && link->is_client && link->channel != NULL) {
            ddi_tcp_dial_for_peer(link->channel, count);
            return true;
        }
        break;
    default:
        break;
    }
    if (st != DD_OK) {
        err.status = link->peer.state >= DDI_PEER_LINKED ? DD_NOT_LINKED : DD_LINK_FAILED;
        ddi_link_end(link, &err, false);
        return false;
    }
    ddi_link_step(link, &event);
    if (!link->is_dead && link->prober != NULL && header->type == DDI_PONG) {
        ddi_admission_settle(link->prober, true);
    }
    return !link->is_dead;
}

/* Take all complete messages out of the input. */
static void take_input(struct ddi_link *link)
{
    size_t at = 0;

    while (link->input_len - at >= DDI_HEADER) {
        struct ddi_header header;
        dd_error err = {0};

        if (ddi_decode_header(link->input + at, DDI_MAX_GREETING, &header, &err) != DD_OK) {
            err.status = DD_LINK_FAILED;
            ddi_link_end(link, &err, false);
            return;
        }
        if (link->input_len - at < DDI_HEADER + header.body) {
            break;
        }
        if (!take_message(link, &header, link->input + at + DDI_HEADER)) {
            return;
        }
        at += DDI_HEADER + header.body;
    }
    link->input_len -= at;
    (void)memmove(link->input, link->input + at, link->input_len);
}

/* How much to read. The first message is read alone: behind an ATTACH stand bytes for the data
 * plane. */
static size_t room_to_read(const struct ddi_link *link)
{
    struct ddi_header header;

    if (link->is_client || link->peer.state != DDI_PEER_IDLE) {
        return sizeof(link->input) - link->input_len;
    }
    if (link->input_len < DDI_HEADER) {
        return DDI_HEADER - link->input_len;
    }
    /* It decoded before, when the header was complete. */
    (void)ddi_decode_header(link->input, DDI_MAX_GREETING, &header, NULL);
    return DDI_HEADER + header.body - link->input_len;
}

static void on_readable(struct ddi_link *link)
{
    ssize_t n = recv(link->watch.fd, link->input + link->input_len, room_to_read(link),
                     MSG_DONTWAIT);

    if (n > 0) {
        link->input_len += (size_t)n;
        take_input(link);
    } else if (n == 0) {
        lose(link, 0, "connection closed");
    } else if (errno != EAGAIN && errno != EINTR) {
        lose(link, errno, "connection lost");
    }
}

static void on_event(void *context, uint32_t events)
{
    struct ddi_link *link = context;
    struct ddi_peer_event event = {.type = DDI_EV_CONNECTED};
    dd_error err;

    if (link->peer.state == DDI_PEER_CONNECTING) {
        if (ddi_sock_connected(link->watch.fd, &link->addrs[link->addr_at], &err) != DD_OK) {
            link->addr_at++;
            dial_next(link, &err);
            return;
        }
        ddi_sock_tune(link->watch.fd, "");
        ddi_loop_rewatch(link->links->config.loop, &link->watch, EPOLLIN);
        ddi_link_step(link, &event);
        return;
    }
    if ((events & EPOLLOUT) != 0) {
        flush(link);
    }
    if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) {
        on_readable(link);
    }
}

static void on_retry(void *context)
{
    struct ddi_link *link = context;

    link->addr_at = 0;
    dial_next(link, NULL);
}

/* Nobody listens there yet: try again until the caller's time is up. Processes that belong together
 * start in any order. */
static void retry_later(struct ddi_link *link, const dd_error *refusal)
{
    link->refusal = *refusal;
    link->retry_ms = link->retry_ms == 0 ? FIRST_RETRY_MS : link->retry_ms * 2;
    link->retry_ms = link->retry_ms > MAX_RETRY_MS ? MAX_RETRY_MS : link->retry_ms;
    link->retry_timer = (struct ddi_timer){.fn = on_retry, .context = link};
    ddi_loop_set_timer(link->links->config.loop, &link->retry_timer,
                       ddi_deadline_ns(link->retry_ms));
}

/* Dial the next address that the name stands for; `last` is why the one before failed. */
static void dial_next(struct ddi_link *link, const dd_error *last)
{
    struct ddi_loop *loop = link->links->config.loop;
    dd_error err = last != NULL ? *last : (dd_error){.status = DD_LINK_FAILED};
    bool local_used;

    ddi_loop_unwatch(loop, &link->watch);
    ddi_sock_close(&link->watch.fd);
    for (; link->addr_at < link->addr_count; link->addr_at++) {
        if (ddi_sock_dial(&link->addrs[link->addr_at], link->local.len > 0 ? &link->local : NULL,
                          &local_used, &link->watch.fd, &err) != DD_OK) {
            continue;
        }
        if (link->local.len > 0 && !local_used) {
            ddi_log(log_of(link), DD_LOG_WARNING,
                    "local address for cluster %" PRIu64 " is not of this host: left out",
                    link->peer.expected_id);
            link->local.len = 0;
        }
        link->watch.fn = on_event;
        link->watch.context = link;
        if (ddi_loop_watch(loop, &link->watch, EPOLLOUT, &err) == DD_OK) {
            return;
        }
        ddi_sock_close(&link->watch.fd);
    }
    link->addr_at = link->addr_count - 1; /* for texts */
    if (err.system_error == ECONNREFUSED) {
        retry_later(link, &err);
    } else {
        ddi_link_end(link, &err, false);
    }
}

void ddi_link_start_client(void *context)
{
    struct ddi_link *link = context;
    struct ddi_peer_event event = {.type = DDI_EV_DIAL, .deadline_ns = link->dial_deadline_ns};

    ddi_peer_init(&link->peer, &link->links->config.identity, true, link->cluster_id,
                  ddi_clock_ns());
    ddi_link_step(link, &event);
    dial_next(link, NULL);
}

void ddi_link_start_server(struct ddi_link *link, int fd, const struct ddi_addr *peer)
{
    struct ddi_peer_event event = {.type = DDI_EV_TIME};
    dd_error err;

    ddi_peer_init(&link->peer, &link->links->config.identity, false, 0, ddi_clock_ns());
    link->addrs[0] = *peer;
    link->addr_count = 1;
    link->watch = (struct ddi_watch){.fd = fd, .fn = on_event, .context = link};
    ddi_sock_tune(fd, "");
    if (ddi_loop_watch(link->links->config.loop, &link->watch, EPOLLIN, &err) != DD_OK) {
        ddi_link_end(link, &err, false);
        return;
    }
    ddi_link_step(link, &event); /* sets the timer of the handshake */
}

/* The owner's side of TCP transfers: connections on which a peer asks and we answer.
 *
 * Each served connection lives on one bulk loop and is touched by that thread only, but for what its
 * struct says. Nothing here blocks: a puller that reads slowly costs its own connection only. */
#include "base/clock.h"
#include "base/num.h"
#include "base/sock.h"
#include "transport/tcp_channel.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#define SMALL_BODY 512                 /* requests up to this size need no memory of their own */
#define TURN_BYTES (UINT64_C(4) << 20) /* then the loop's other connections get their turn */
#define GRACE_MS 500                   /* a sender gives up this long after its puller did */
#define MAX_SERVED 1024                /* connections of one link */
#define END_BYTES (DDI_HEADER + 4)
#define HEAD_BYTES (DDI_HEADER + 64)

struct ddi_served {
    struct ddi_channel *channel; /* holds a reference */
    struct ddi_loop *loop;       /* constant */
    struct ddi_watch watch;
    struct ddi_timer timer; /* while sending: the puller's deadline */
    struct ddi_task open_task;
    struct ddi_task close_task;
    struct ddi_task start_task;
    uint32_t id;     /* constant */
    uint32_t events; /* watched now */
    bool is_closed;
    /* The request being read. */
    uint8_t header_bytes[DDI_HEADER];
    struct ddi_header header;
    size_t got; /* of header and body together */
    uint8_t small_body[SMALL_BODY];
    uint8_t *body; /* small_body, or allocated */
    /* The part being sent: head, bytes, end. */
    struct ddi_job *job;
    uint8_t head[HEAD_BYTES];
    uint8_t end[END_BYTES];
    uint64_t head_len;
    uint64_t first; /* of the transfer's stream */
    uint64_t len;
    uint64_t sent; /* of head, bytes and end together */
    uint64_t deadline_ns;
    /* Guarded by channel->mu. */
    struct ddi_served *next;
    struct ddi_job *claimed; /* handed over for start_task, with part and parts. Its last part may
                                still be ending here: the puller has the bytes before we know */
    uint32_t part;
    uint32_t parts;
    uint64_t claimed_deadline_ns;
    struct ddi_job *unconfirmed; /* waits for CONFIRM; holds a reference */
};

static void close_served(void *context);

static const struct ddi_owner_ops *owner_ops(const struct ddi_served *served)
{
    return served->channel->tcp->config.owner;
}

static void drop_job(struct ddi_served *served, struct ddi_job *job)
{
    /* Release: the last one sees what the others wrote. */
    if (atomic_fetch_sub_explicit(&job->refs, 1, memory_order_acq_rel) == 1) {
        owner_ops(served)->end(served->channel->peer.owner, job);
    }
}

/* One part of a job is over, sent or not. */
static void end_share(struct ddi_served *served, struct ddi_job *job, bool is_whole)
{
    if (!is_whole) {
        atomic_store_explicit(&job->is_broken, true, memory_order_relaxed);
    }
    /* Acquire and release: the last part sees is_broken of the others. */
    if (atomic_fetch_sub_explicit(&job->parts, 1, memory_order_acq_rel) == 1) {
        owner_ops(served)->sent(served->channel->peer.owner, job,
                                !atomic_load_explicit(&job->is_broken, memory_order_relaxed));
    }
    drop_job(served, job);
}

/* This connection's part of its job is over. */
static void end_part(struct ddi_served *served, bool is_whole)
{
    struct ddi_job *job = served->job;

    served->job = NULL;
    ddi_loop_clear_timer(served->loop, &served->timer);
    end_share(served, job, is_whole);
}

static void watch_for(struct ddi_served *served, uint32_t events)
{
    if (served->events != events) {
        served->events = events;
        ddi_loop_rewatch(served->loop, &served->watch, events);
    }
}

/* Put the next bytes to send into `vector`; returns the number of entries. */
static size_t next_vector(struct ddi_served *served, struct iovec *vector)
{
    struct ddi_segment segments[DDI_TCP_BATCH];
    uint64_t at = served->sent;
    size_t n = 0;

    if (at < served->head_len) {
        vector[n].iov_base = served->head + at;
        vector[n++].iov_len = served->head_len - at;
        at = served->head_len;
    }
    at -= served->head_len;
    if (at < served->len) {
        struct ddi_cursor cursor = ddi_cursor_at(&served->job->plan, served->first + at,
                                                 served->len - at);
        uint64_t turn = 0;
        size_t count = ddi_cursor_next(&cursor, segments, DDI_TCP_BATCH);
        size_t i;

        for (i = 0; i < count && turn < TURN_BYTES; i++) {
            vector[n].iov_base = (void *)(uintptr_t)segments[i].src;
            vector[n++].iov_len = segments[i].len;
            turn += segments[i].len;
        }
        at += turn;
        if (at < served->len) {
            return n;
        }
    }
    at -= served->len;
    vector[n].iov_base = served->end + at;
    vector[n++].iov_len = sizeof(served->end) - at;
    return n;
}

/* Send what the socket takes, one turn at most. */
static void push(struct ddi_served *served)
{
    uint64_t total = served->head_len + served->len + sizeof(served->end);
    uint64_t turn_end = served->sent + TURN_BYTES;

    while (served->sent < total && served->sent < turn_end) {
        struct iovec vector[DDI_TCP_BATCH + 2];
        struct msghdr message = {.msg_iov = vector, .msg_iovlen = next_vector(served, vector)};
        ssize_t n = sendmsg(served->watch.fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);

        if (n >= 0) {
            served->sent += (uint64_t)n;
        } else if (errno == EAGAIN) {
            break;
        } else if (errno != EINTR) {
            close_served(served);
            return;
        }
    }
    if (served->sent == total) {
        end_part(served, true);
        watch_for(served, EPOLLIN);
        return;
    }
    if (!served->timer.is_active) {
        ddi_loop_set_timer(served->loop, &served->timer, served->deadline_ns);
    }
    watch_for(served, EPOLLOUT);
}

static void start_part(struct ddi_served *served, struct ddi_job *job, uint32_t part,
                       uint32_t parts, uint64_t deadline_ns)
{
    struct ddi_data data = {.bytes = job->bytes, .confirm = job->confirm};

    data.first = ddi_plan_cut(&job->plan, part, parts);
    data.len = ddi_plan_cut(&job->plan, part + 1, parts) - data.first;
    served->job = job;
    served->first = data.first;
    served->len = data.len;
    served->sent = 0;
    served->deadline_ns = deadline_ns;
    served->head_len = ddi_encode_data(served->head, sizeof(served->head), job->id, &data);
    (void)ddi_encode_u32(served->end, sizeof(served->end), DDI_END, job->id, DD_OK);
    push(served);
}

/* Runs on this connection's loop: another connection of the link got the request. */
static void start_claimed(void *context)
{
    struct ddi_served *served = context;
    struct ddi_job *job;

    ddi_mutex_lock(&served->channel->mu);
    job = served->claimed;
    served->claimed = NULL;
    ddi_mutex_unlock(&served->channel->mu);
    if (job == NULL) {
        return;
    }
    if (served->is_closed || served->job != NULL) {
        /* Gone meanwhile; or a puller asks for bytes where it has not read the last ones. */
        end_share(served, job, false);
        close_served(served);
        return;
    }
    start_part(served, job, served->part, served->parts, served->claimed_deadline_ns);
}

static void send_small(struct ddi_served *served, const uint8_t *bytes, size_t n)
{
    int code;

    /* A peer that leaves no room for a few bytes while it waits for them is not in order. */
    if (ddi_sock_send(served->watch.fd, bytes, n, 0, &code) != DD_OK) {
        close_served(served);
    }
}

static void refuse(struct ddi_served *served, const dd_error *err)
{
    uint8_t bytes[DDI_HEADER + DDI_MAX_GREETING];
    size_t n = ddi_encode_refusal(bytes, sizeof(bytes), DDI_FAIL, served->header.id, err->status,
                                  err->text);

    send_small(served, bytes, n);
}

/* A puller has every byte of transfer `id`. */
static void on_confirmed(struct ddi_served *served, uint64_t id)
{
    struct ddi_channel *channel = served->channel;
    struct ddi_job *job = NULL;

    ddi_mutex_lock(&channel->mu);
    for (struct ddi_served *at = channel->served; at != NULL && job == NULL; at = at->next) {
        if (at->unconfirmed != NULL && at->unconfirmed->id == id) {
            job = at->unconfirmed;
            at->unconfirmed = NULL;
        }
    }
    ddi_mutex_unlock(&channel->mu);
    if (job != NULL) {
        owner_ops(served)->confirmed(channel->peer.owner, job);
        drop_job(served, job);
    }
}

/* Claim the connections that the puller wants the bytes on. All or none. */
static bool claim(struct ddi_served *served, const struct ddi_pull *pull, struct ddi_job *job,
                  uint64_t deadline_ns, struct ddi_served **others)
{
    struct ddi_channel *channel = served->channel;
    uint32_t found = 1;

    ddi_mutex_lock(&channel->mu);
    for (uint32_t i = 1; i < pull->stream_count; i++) {
        for (struct ddi_served *at = channel->served; at != NULL; at = at->next) {
            bool is_twice = at == served;

            for (uint32_t k = 1; k < i && !is_twice; k++) {
                is_twice = at == others[k];
            }
            if (at->id == pull->streams[i] && at->claimed == NULL && !is_twice) {
                others[i] = at;
                found++;
                break;
            }
        }
        if (found != i + 1) {
            break;
        }
    }
    if (found == pull->stream_count) {
        if (job->confirm) {
            served->unconfirmed = job;
        }
        for (uint32_t i = 1; i < pull->stream_count; i++) {
            others[i]->claimed = job;
            others[i]->part = i;
            others[i]->parts = pull->stream_count;
            others[i]->claimed_deadline_ns = deadline_ns;
            /* Under the lock: a connection in the list is not freed before it leaves it. */
            ddi_loop_post(others[i]->loop, &others[i]->start_task);
        }
    }
    ddi_mutex_unlock(&channel->mu);
    return found == pull->stream_count;
}

/* What this connection still waits for will not come: the puller goes on. */
static void forget_unconfirmed(struct ddi_served *served)
{
    struct ddi_job *job;

    ddi_mutex_lock(&served->channel->mu);
    job = served->unconfirmed;
    served->unconfirmed = NULL;
    ddi_mutex_unlock(&served->channel->mu);
    if (job != NULL) {
        drop_job(served, job);
    }
}

static void serve(struct ddi_served *served, const struct ddi_pull *pull)
{
    const struct ddi_owner_ops *ops = owner_ops(served);
    void *owner = served->channel->peer.owner;
    struct ddi_served *others[DDI_MAX_STREAMS];
    uint64_t deadline_ns = ddi_deadline_ns(pull->left_ms) + GRACE_MS * DDI_NS_PER_MS;
    struct ddi_job *job = NULL;
    dd_error err = {0};

    for (uint16_t i = 0; i < pull->confirm_count; i++) {
        on_confirmed(served, pull->confirms[i]);
    }
    forget_unconfirmed(served);
    if (pull->stream_count == 0 || pull->streams[0] != served->id) {
        (void)ddi_fail(&err, DD_INVALID, "request names another data connection first");
        refuse(served, &err);
        return;
    }
    if (ops->serve(owner, pull, &job, &err) != DD_OK) {
        refuse(served, &err);
        return;
    }
    job->id = served->header.id;
    atomic_init(&job->parts, pull->stream_count);
    atomic_init(&job->refs, pull->stream_count + (job->confirm ? 1U : 0U));
    atomic_init(&job->is_broken, false);
    if (!claim(served, pull, job, deadline_ns, others)) {
        ops->sent(owner, job, false);
        ops->end(owner, job);
        if (ddi_tcp_is_cut(served->channel, NULL)) {
            close_served(served); /* the link is ending: the others went first */
            return;
        }
        (void)ddi_fail(&err, DD_NOT_LINKED, "peer lost: another of its data connections is gone");
        refuse(served, &err);
        return;
    }
    start_part(served, job, 0, pull->stream_count, deadline_ns);
}

static void on_pull(struct ddi_served *served)
{
    struct ddi_pull pull;
    dd_error err = {0};
    uint64_t *blocks = NULL;
    uint64_t small[SMALL_BODY / 4];

    if (served->header.body <= SMALL_BODY) {
        blocks = small;
    } else {
        blocks = malloc((served->header.body / 4 + 1) * sizeof(*blocks));
        if (blocks == NULL) {
            (void)ddi_fail(&err, DD_NO_MEMORY, "owner has no memory for the request");
            refuse(served, &err);
            return;
        }
    }
    if (ddi_decode_pull(served->body, served->header.body, blocks, &pull, &err) != DD_OK) {
        ddi_log(served->channel->tcp->config.log, DD_LOG_WARNING, "bad request from %s: %s",
                served->channel->name, err.text);
        close_served(served);
    } else {
        serve(served, &pull);
    }
    if (blocks != small) {
        free(blocks);
    }
}

static void on_request(struct ddi_served *served)
{
    struct ddi_confirm confirm;
    uint8_t pong[DDI_HEADER];
    dd_error err = {0};

    switch (served->header.type) {
    case DDI_PULL:
        on_pull(served);
        return;
    case DDI_CONFIRM:
        if (ddi_decode_confirm(served->body, served->header.body, &confirm, &err) == DD_OK) {
            for (uint16_t i = 0; i < confirm.count; i++) {
                on_confirmed(served, confirm.ids[i]);
            }
            return;
        }
        break;
    case DDI_PING:
        (void)ddi_encode_empty(pong, sizeof(pong), DDI_PONG, served->header.id);
        send_small(served, pong, sizeof(pong));
        return;
    default:
        (void)ddi_fail(&err, DD_INVALID, "message type %u on a data connection",
                       served->header.type);
        break;
    }
    ddi_log(served->channel->tcp->config.log, DD_LOG_WARNING, "bad message from %s: %s",
            served->channel->name, err.text);
    close_served(served);
}

/* Make room for the body. */
static bool begin_body(struct ddi_served *served)
{
    dd_error err = {0};

    if (ddi_decode_header(served->header_bytes, DDI_MAX_BODY, &served->header, &err) != DD_OK) {
        ddi_log(served->channel->tcp->config.log, DD_LOG_WARNING, "bad message from %s: %s",
                served->channel->name, err.text);
        return false;
    }
    served->body = served->small_body;
    if (served->header.body > SMALL_BODY) {
        served->body = malloc(served->header.body);
    }
    return served->body != NULL;
}

static void end_body(struct ddi_served *served)
{
    if (served->body != NULL && served->body != served->small_body) {
        free(served->body);
    }
    served->body = NULL;
    served->got = 0;
}

/* Read more of the request. Returns false when there is nothing more to do now. */
static bool read_some(struct ddi_served *served)
{
    bool in_header = served->got < DDI_HEADER;
    size_t body_got = in_header ? 0 : served->got - DDI_HEADER;
    uint8_t *at = in_header ? served->header_bytes + served->got : served->body + body_got;
    size_t want = in_header ? DDI_HEADER - served->got : served->header.body - body_got;
    ssize_t n = recv(served->watch.fd, at, want, MSG_DONTWAIT);

    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
        return false;
    }
    if (n <= 0) {
        close_served(served); /* the puller is done with it, or gone */
        return false;
    }
    served->got += (size_t)n;
    if (served->got == DDI_HEADER && !begin_body(served)) {
        close_served(served);
        return false;
    }
    if (served->got >= DDI_HEADER && served->got == DDI_HEADER + served->header.body) {
        on_request(served);
        end_body(served);
        return false; /* what comes next, the loop tells */
    }
    return (size_t)n == want;
}

static void on_event(void *context, uint32_t events)
{
    struct ddi_served *served = context;

    if (served->job != NULL) {
        if ((events & (EPOLLERR | EPOLLHUP)) != 0) {
            close_served(served);
        } else if ((events & EPOLLOUT) != 0) {
            push(served);
        }
        return;
    }
    while (!served->is_closed && read_some(served)) {
    }
}

static void on_deadline(void *context)
{
    close_served(context); /* the puller has given up long ago */
}

static void free_served(void *context)
{
    struct ddi_served *served = context;

    end_body(served);
    ddi_tcp_channel_put(served->channel);
    free(served);
}

/* Leave the list, then go when no task of ours can be waiting in the loop's queue any more. */
static void close_served(void *context)
{
    struct ddi_served *served = context;
    struct ddi_channel *channel = served->channel;

    if (served->is_closed) {
        return;
    }
    served->is_closed = true;
    ddi_loop_unwatch(served->loop, &served->watch);
    ddi_sock_close(&served->watch.fd);
    ddi_mutex_lock(&channel->mu);
    for (struct ddi_served **at = &channel->served; *at != NULL; at = &(*at)->next) {
        if (*at == served) {
            *at = served->next;
            channel->served_count--;
            break;
        }
    }
    ddi_mutex_unlock(&channel->mu);
    if (served->job != NULL) {
        end_part(served, false);
    }
    forget_unconfirmed(served);
    /* Tasks are only posted to connections in the list, under the lock; those posted before run
     * before this one. */
    served->open_task = (struct ddi_task){.fn = free_served, .context = served};
    ddi_loop_post(served->loop, &served->open_task);
}

/* First steps on its own loop: watch, and tell the peer our name for the connection. */
static void open_on_loop(void *context)
{
    struct ddi_served *served = context;
    uint8_t bytes[DDI_HEADER + 4];
    dd_error err = {0};
    size_t n = ddi_encode_u32(bytes, sizeof(bytes), DDI_ATTACHED, 0, served->id);

    if (served->is_closed) {
        return;
    }
    served->events = EPOLLIN;
    if (ddi_loop_watch(served->loop, &served->watch, EPOLLIN, &err) != DD_OK) {
        ddi_log(served->channel->tcp->config.log, DD_LOG_WARNING, "%s: %s", served->channel->name,
                err.text);
        close_served(served);
        return;
    }
    send_small(served, bytes, n);
}

void ddi_served_open(struct ddi_channel *channel, int fd)
{
    dd_error err = {0};
    bool is_taken = false;
    struct ddi_served *served = calloc(1, sizeof(*served));

    if (served == NULL || ddi_tcp_next_loop(channel->tcp, &served->loop, &err) != DD_OK) {
        ddi_log(channel->tcp->config.log, DD_LOG_ERROR, "no data connection for %s: %s",
                channel->name, served == NULL ? "out of memory" : err.text);
        free(served);
        ddi_sock_close(&fd);
        return;
    }
    served->channel = channel;
    served->watch = (struct ddi_watch){.fd = fd, .fn = on_event, .context = served};
    served->timer = (struct ddi_timer){.fn = on_deadline, .context = served};
    served->open_task = (struct ddi_task){.fn = open_on_loop, .context = served};
    served->close_task = (struct ddi_task){.fn = close_served, .context = served};
    served->start_task = (struct ddi_task){.fn = start_claimed, .context = served};
    ddi_mutex_lock(&channel->mu);
    if (!channel->is_cut && channel->served_count < MAX_SERVED) {
        served->id = channel->next_served++;
        served->next = channel->served;
        channel->served = served;
        channel->served_count++;
        ddi_tcp_channel_get(channel);
        is_taken = true;
        ddi_loop_post(served->loop, &served->open_task);
    }
    ddi_mutex_unlock(&channel->mu);
    if (!is_taken) {
        ddi_sock_close(&fd);
        free(served);
    }
}

void ddi_served_cut_locked(struct ddi_channel *channel)
{
    for (struct ddi_served *at = channel->served; at != NULL; at = at->next) {
        ddi_loop_post(at->loop, &at->close_task);
    }
}

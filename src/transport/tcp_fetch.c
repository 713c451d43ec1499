/* The puller's side of a TCP transfer: one request, then bytes straight into the destination.
 *
 * The calling thread sends the request and reads the first part; workers read the parts of the other
 * connections. All of them have ended when the fetch returns: nothing writes any more. */
#include "base/clock.h"
#include "base/num.h"
#include "base/sock.h"
#include "transport/tcp_channel.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REPLY_BYTES (DDI_HEADER + 64)
#define END_BYTES (DDI_HEADER + 4)
#define SMALL_REQUEST 2048 /* built on the stack */

struct transfer;

/* What one connection brings. */
struct part {
    struct transfer *transfer;
    struct ddi_stream *stream;
    struct ddi_task task;
    uint32_t index;
    uint64_t done; /* bytes in place */
    dd_status status;
    bool is_owner_word; /* the failure is what the owner said, the stream is in order */
    bool is_ended;      /* guarded by transfer->mu */
    const char *step;   /* what was being done when the connection failed; NULL: err says it all */
    dd_error err;
};

struct transfer {
    struct ddi_channel *channel;
    struct ddi_fetch *fetch;
    const struct ddi_plan *plan;
    uint64_t id;
    uint64_t bytes; /* per tensor, from the first DATA */
    bool confirm;
    uint32_t part_count;
    struct ddi_mutex mu; /* rank DDI_RANK_CHANNEL */
    struct ddi_cond ended;
    struct part *first_failed; /* guarded by mu; the others only felt the consequences */
    struct part parts[DDI_TCP_MAX_STREAMS];
};

/* A read or write has failed. The text is made when all parts have ended, see describe(). */
static dd_status part_failed(struct part *part, dd_status st, int system_error, const char *step)
{
    part->step = step;
    part->err.status = st;
    part->err.system_error = system_error;
    return st;
}

/* Say what failed, where, and how far the whole transfer had come. */
static dd_status describe(struct part *part, dd_error *err)
{
    const struct transfer *transfer = part->transfer;
    const char *name = transfer->channel->name;
    uint64_t wanted = transfer->plan == NULL ? transfer->fetch->estimate : transfer->plan->total;
    uint64_t done = 0;
    char progress[96];
    dd_error reason;

    for (uint32_t i = 0; i < transfer->part_count; i++) {
        done += transfer->parts[i].done;
    }
    (void)snprintf(progress, sizeof(progress),
                   "while %s, %" PRIu64 " bytes done of %" PRIu64 " wanted", part->step,
                   ddi_min_u64(done, wanted), wanted);
    if (ddi_tcp_is_cut(transfer->channel, &reason)) {
        return ddi_fail(err, reason.status, "%s: %s %s", name, reason.text, progress);
    }
    if (part->err.status == DD_TIMEOUT) {
        return ddi_fail(err, DD_TIMEOUT, "%s: time-out of %u ms %s", name,
                        transfer->fetch->timeout_ms, progress);
    }
    if (part->err.system_error != 0) {
        return ddi_fail_system(err, DD_NOT_LINKED, part->err.system_error, "peer lost: %s %s", name,
                               progress);
    }
    return ddi_fail(err, DD_NOT_LINKED, "peer lost: %s closed the connection %s", name, progress);
}

static dd_status bad_reply(struct part *part, const char *what)
{
    return ddi_fail(&part->err, DD_FAILED, "%s: bad reply: %s", part->transfer->channel->name,
                    what);
}

/* Read a FAIL: the owner's own words. */
static dd_status read_refusal(struct part *part, uint32_t body)
{
    struct ddi_refusal refusal;
    uint8_t bytes[DDI_MAX_GREETING];
    int code = 0;
    dd_status st;

    if (body > sizeof(bytes)) {
        return bad_reply(part, "FAIL is too long");
    }
    st = ddi_sock_receive(part->stream->fd, bytes, body, part->transfer->fetch->deadline_ns, &code);
    if (st != DD_OK) {
        return part_failed(part, st, code, "reading a refusal");
    }
    if (ddi_decode_refusal(bytes, body, &refusal, &part->err) != DD_OK || refusal.status == DD_OK) {
        return bad_reply(part, "FAIL cannot be read");
    }
    part->is_owner_word = true;
    return ddi_fail(&part->err, refusal.status, "%s: %s", part->transfer->channel->name,
                    refusal.text);
}

/* Read the header of the owner's reply on this connection. */
static dd_status read_reply(struct part *part, struct ddi_data *data)
{
    struct ddi_header header;
    uint8_t bytes[REPLY_BYTES];
    uint64_t deadline_ns = part->transfer->fetch->deadline_ns;
    int code = 0;
    dd_status st = ddi_sock_receive(part->stream->fd, bytes, DDI_HEADER, deadline_ns, &code);

    if (st != DD_OK) {
        return part_failed(part, st, code, "waiting for the reply");
    }
    if (ddi_decode_header(bytes, DDI_MAX_GREETING, &header, &part->err) != DD_OK) {
        return bad_reply(part, "header");
    }
    if (header.id != part->transfer->id) {
        return bad_reply(part, "id of another transfer");
    }
    if (header.type == DDI_FAIL) {
        return read_refusal(part, header.body);
    }
    if (header.type != DDI_DATA || header.body > REPLY_BYTES - DDI_HEADER) {
        return bad_reply(part, "neither DATA nor FAIL");
    }
    st = ddi_sock_receive(part->stream->fd, bytes + DDI_HEADER, header.body, deadline_ns, &code);
    if (st != DD_OK) {
        return part_failed(part, st, code, "waiting for the reply");
    }
    if (ddi_decode_data(bytes + DDI_HEADER, header.body, data, &part->err) != DD_OK) {
        return bad_reply(part, "DATA cannot be read");
    }
    return DD_OK;
}

/* Take `got` bytes off the front of a vector. */
static void advance(struct iovec **at, size_t *count, size_t got)
{
    while (*count > 0 && got >= (*at)->iov_len) {
        got -= (*at)->iov_len;
        (*at)++;
        (*count)--;
    }
    if (got > 0) {
        (*at)->iov_base = (uint8_t *)(*at)->iov_base + got;
        (*at)->iov_len -= got;
    }
}

/* Fill one vector completely. */
static dd_status receive_vector(struct part *part, struct iovec *at, size_t count)
{
    while (count > 0) {
        struct msghdr message = {.msg_iov = at, .msg_iovlen = count};
        ssize_t got = recvmsg(part->stream->fd, &message, MSG_DONTWAIT);

        if (got > 0) {
            part->done += (uint64_t)got;
            advance(&at, &count, (size_t)got);
        } else if (got == 0) {
            return part_failed(part, DD_NOT_LINKED, 0, "moving bytes");
        } else if (errno == EAGAIN) {
            if (ddi_sock_wait(part->stream->fd, POLLIN, part->transfer->fetch->deadline_ns) !=
                DD_OK) {
                return part_failed(part, DD_TIMEOUT, 0, "moving bytes");
            }
        } else if (errno != EINTR) {
            return part_failed(part, DD_NOT_LINKED, errno, "moving bytes");
        }
    }
    return DD_OK;
}

static dd_status check_end(struct part *part, const uint8_t *end)
{
    struct ddi_header header;
    uint32_t status;

    if (ddi_decode_header(end, END_BYTES, &header, &part->err) != DD_OK || header.type != DDI_END ||
        header.id != part->transfer->id || header.body != 4 ||
        ddi_decode_u32(end + DDI_HEADER, header.body, &status, &part->err) != DD_OK) {
        return bad_reply(part, "no END behind the bytes");
    }
    if (status != DD_OK) {
        /* Whatever number the peer sends, this is what it means here. */
        return ddi_fail(&part->err, DD_NO_CACHE, "%s: the source was withdrawn while it was pulled",
                        part->transfer->channel->name);
    }
    return DD_OK;
}

/* Scatter the bytes of this part into the destination, then check what stands behind them. */
static dd_status receive_body(struct part *part, const struct ddi_data *data)
{
    struct transfer *transfer = part->transfer;
    struct ddi_segment segments[DDI_TCP_BATCH];
    struct iovec vector[DDI_TCP_BATCH + 1];
    uint8_t end[END_BYTES];
    uint64_t first = ddi_plan_cut(transfer->plan, part->index, transfer->part_count);
    uint64_t last = ddi_plan_cut(transfer->plan, part->index + 1, transfer->part_count);
    struct ddi_cursor cursor;
    bool is_last;

    if (data->bytes != transfer->bytes || data->first != first || data->len != last - first) {
        return bad_reply(part, "DATA differs from the request");
    }
    cursor = ddi_cursor_at(transfer->plan, first, last - first);
    do {
        size_t n = ddi_cursor_next(&cursor, segments, DDI_TCP_BATCH);
        dd_status st;

        for (size_t i = 0; i < n; i++) {
            vector[i].iov_base = (void *)(uintptr_t)segments[i].dst;
            vector[i].iov_len = segments[i].len;
        }
        is_last = n < DDI_TCP_BATCH;
        if (is_last) {
            vector[n].iov_base = end;
            vector[n].iov_len = sizeof(end);
            n++;
        }
        st = receive_vector(part, vector, n);
        if (st != DD_OK) {
            return st;
        }
    } while (!is_last);
    part->done -= sizeof(end);
    return check_end(part, end);
}

/* One part lost is all lost: wake the others. */
static void end_part(struct part *part)
{
    struct transfer *transfer = part->transfer;

    ddi_mutex_lock(&transfer->mu);
    part->is_ended = true;
    if (part->status != DD_OK && transfer->first_failed == NULL) {
        transfer->first_failed = part;
        for (uint32_t i = 0; i < transfer->part_count; i++) {
            ddi_sock_shutdown(transfer->parts[i].stream->fd);
        }
    }
    ddi_cond_signal(&transfer->ended);
    ddi_mutex_unlock(&transfer->mu);
}

/* A worker's part, from its reply to its end. */
static void run_part(void *context)
{
    struct part *part = context;
    struct ddi_data data = {0};

    part->status = read_reply(part, &data);
    if (part->status == DD_OK) {
        part->status = receive_body(part, &data);
    }
    end_part(part);
}

/* Move the bytes of all parts; part 0's reply was read. All threads are done when this returns. */
static void run_parts(struct transfer *transfer, const struct ddi_data *data)
{
    struct part *own = &transfer->parts[0];
    bool is_posted[DDI_TCP_MAX_STREAMS] = {false};

    for (uint32_t i = 1; i < transfer->part_count; i++) {
        struct part *part = &transfer->parts[i];

        part->task = (struct ddi_task){.fn = run_part, .context = part};
        is_posted[i] = ddi_workers_post(transfer->channel->tcp->workers, &part->task);
    }
    own->status = receive_body(own, data);
    end_part(own);
    for (uint32_t i = 1; i < transfer->part_count; i++) {
        if (!is_posted[i]) {
            run_part(&transfer->parts[i]);
        }
    }
    ddi_mutex_lock(&transfer->mu);
    for (uint32_t i = 1; i < transfer->part_count; i++) {
        while (!transfer->parts[i].is_ended) {
            (void)ddi_cond_wait_until(&transfer->ended, &transfer->mu, DDI_NEVER);
        }
    }
    ddi_mutex_unlock(&transfer->mu);
}

/* Fill in what the transport owns of a request: id, streams, confirmations, time left. */
static void complete_request(struct transfer *transfer)
{
    struct ddi_channel *channel = transfer->channel;
    struct ddi_pull *pull = transfer->fetch->pull;
    int left_ms = ddi_left_ms(transfer->fetch->deadline_ns);

    pull->left_ms = left_ms > 0 ? (uint32_t)left_ms : 0;
    pull->stream_count = (uint16_t)transfer->part_count;
    for (uint32_t i = 0; i < transfer->part_count; i++) {
        pull->streams[i] = transfer->parts[i].stream->remote_id;
    }
    ddi_mutex_lock(&channel->mu);
    transfer->id = channel->next_id++;
    pull->confirm_count = channel->confirm_count;
    (void)memcpy(pull->confirms, channel->confirms,
                 channel->confirm_count * sizeof(pull->confirms[0]));
    ddi_mutex_unlock(&channel->mu);
}

static dd_status send_request(struct transfer *transfer)
{
    struct part *own = &transfer->parts[0];
    struct ddi_pull *pull = transfer->fetch->pull;
    uint8_t small[SMALL_REQUEST];
    uint8_t *bytes = small;
    size_t n;
    int code = 0;
    dd_status st;

    complete_request(transfer);
    n = ddi_pull_size(pull);
    if (n > sizeof(small)) {
        bytes = malloc(n);
        if (bytes == NULL) {
            own->is_owner_word = true; /* nothing was sent: the stream stays in order */
            return ddi_fail(&own->err, DD_NO_MEMORY, "request of %zu bytes", n);
        }
    }
    n = ddi_encode_pull(bytes, n > sizeof(small) ? n : sizeof(small), transfer->id, pull);
    assert(n > 0); /* the limits were checked where the request was made */
    st = ddi_sock_send(own->stream->fd, bytes, n, transfer->fetch->deadline_ns, &code);
    if (bytes != small) {
        free(bytes);
    }
    return st == DD_OK ? DD_OK : part_failed(own, st, code, "sending the request");
}

/* The owner has answered: it has seen the confirmations that rode on the request. */
static void forget_confirms(struct ddi_channel *channel, const struct ddi_pull *pull)
{
    uint16_t kept = 0;

    ddi_mutex_lock(&channel->mu);
    for (uint16_t i = 0; i < channel->confirm_count; i++) {
        bool was_sent = false;

        for (uint16_t k = 0; k < pull->confirm_count && !was_sent; k++) {
            was_sent = pull->confirms[k] == channel->confirms[i];
        }
        if (!was_sent) {
            channel->confirms[kept++] = channel->confirms[i];
        }
    }
    channel->confirm_count = kept;
    ddi_mutex_unlock(&channel->mu);
}

/* Tell the owner that every byte arrived, and remember to repeat it: a request on another
 * connection may overtake this one. A send that fails is made good by the repetition. */
static void confirm(struct transfer *transfer)
{
    struct ddi_channel *channel = transfer->channel;
    struct ddi_confirm message = {.count = 1, .ids = {transfer->id}};
    uint8_t bytes[DDI_HEADER + 16];
    size_t n = ddi_encode_confirm(bytes, sizeof(bytes), &message);
    int code;

    ddi_mutex_lock(&channel->mu);
    if (channel->confirm_count == DDI_MAX_CONFIRMS) {
        /* The oldest left long ago on a connection that has worked since. */
        channel->confirm_count--;
        (void)memmove(&channel->confirms[0], &channel->confirms[1],
                      channel->confirm_count * sizeof(channel->confirms[0]));
    }
    channel->confirms[channel->confirm_count++] = transfer->id;
    ddi_mutex_unlock(&channel->mu);
    (void)ddi_sock_send(transfer->parts[0].stream->fd, bytes, n, transfer->fetch->deadline_ns,
                        &code);
}

/* From the request to the last byte. Leaves the outcome in the parts. */
static void run_transfer(struct transfer *transfer)
{
    struct part *own = &transfer->parts[0];
    struct ddi_fetch *fetch = transfer->fetch;
    struct ddi_data data = {0};

    own->status = send_request(transfer);
    if (own->status != DD_OK) {
        return;
    }
    own->status = read_reply(own, &data);
    if (own->status == DD_OK || own->is_owner_word) {
        forget_confirms(transfer->channel, fetch->pull);
    }
    if (own->status != DD_OK) {
        return;
    }
    own->status = fetch->plan(fetch->context, data.bytes, &transfer->plan, &own->err);
    if (own->status != DD_OK) {
        ddi_error_context(&own->err, "%s", transfer->channel->name);
        return;
    }
    transfer->bytes = data.bytes;
    run_parts(transfer, &data);
    fetch->total = transfer->plan->total;
    transfer->confirm = data.confirm;
}

static dd_status finish(struct transfer *transfer, dd_error *err)
{
    struct part *failed = transfer->first_failed;
    bool is_clean;
    dd_status st = DD_OK;

    if (failed == NULL && transfer->parts[0].status != DD_OK) {
        failed = &transfer->parts[0]; /* before any byte was moved */
    }
    if (failed == NULL && transfer->confirm) {
        confirm(transfer);
    }
    if (failed != NULL) {
        st = failed->status;
        if (failed->step != NULL) {
            st = describe(failed, err);
        } else if (err != NULL) {
            *err = failed->err;
        }
    }
    is_clean = failed == NULL || failed->is_owner_word;
    for (uint32_t i = 0; i < transfer->part_count; i++) {
        ddi_tcp_checkin(transfer->channel, transfer->parts[i].stream, is_clean);
    }
    return st;
}

dd_status ddi_tcp_fetch(struct ddi_channel *channel, struct ddi_fetch *fetch, dd_error *err)
{
    const struct ddi_tcp_config *config = &channel->tcp->config;
    struct ddi_stream *streams[DDI_TCP_MAX_STREAMS];
    struct transfer transfer = {.channel = channel, .fetch = fetch};
    uint64_t want = 1 + fetch->estimate / config->stream_bytes;
    dd_status st;

    want = ddi_min_u64(want, config->streams);
    st = ddi_tcp_checkout(channel, (uint32_t)want, fetch->deadline_ns, fetch->timeout_ms, streams,
                          &transfer.part_count, err);
    if (st != DD_OK) {
        return st;
    }
    ddi_mutex_init(&transfer.mu, DDI_RANK_CHANNEL);
    ddi_cond_init(&transfer.ended);
    for (uint32_t i = 0; i < transfer.part_count; i++) {
        transfer.parts[i].transfer = &transfer;
        transfer.parts[i].stream = streams[i];
        transfer.parts[i].index = i;
    }
    run_transfer(&transfer);
    st = finish(&transfer, err);
    ddi_cond_fini(&transfer.ended);
    ddi_mutex_fini(&transfer.mu);
    return st;
}

dd_status ddi_tcp_check(struct ddi_channel *channel, uint64_t deadline_ns, uint32_t timeout_ms,
                        dd_error *err)
{
    struct ddi_pull none = {0};
    struct ddi_fetch fetch = {.pull = &none, .deadline_ns = deadline_ns, .timeout_ms = timeout_ms};
    struct transfer transfer = {.channel = channel, .fetch = &fetch, .part_count = 1};
    struct part *part = &transfer.parts[0];
    struct ddi_header header = {0};
    uint8_t bytes[DDI_HEADER];
    uint32_t got;
    int code = 0;
    size_t n;
    dd_status st = ddi_tcp_checkout(channel, 1, deadline_ns, timeout_ms, &part->stream, &got, err);

    if (st != DD_OK) {
        return st;
    }
    part->transfer = &transfer;
    ddi_mutex_lock(&channel->mu);
    transfer.id = channel->next_id++;
    ddi_mutex_unlock(&channel->mu);
    n = ddi_encode_empty(bytes, sizeof(bytes), DDI_PING, transfer.id);
    st = ddi_sock_send(part->stream->fd, bytes, n, deadline_ns, &code);
    if (st == DD_OK) {
        st = ddi_sock_receive(part->stream->fd, bytes, DDI_HEADER, deadline_ns, &code);
    }
    if (st != DD_OK) {
        (void)part_failed(part, st, code, "checking the link");
        st = describe(part, &part->err);
    } else if (ddi_decode_header(bytes, 0, &header, &part->err) != DD_OK ||
               header.type != DDI_PONG || header.id != transfer.id) {
        st = bad_reply(part, "no PONG");
    }
    ddi_tcp_checkin(channel, part->stream, st == DD_OK);
    if (st != DD_OK && err != NULL) {
        *err = part->err;
    }
    return st;
}

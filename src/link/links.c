/* The links of an engine, from the callers' side: check, hand to the loop, wait with a deadline. */
#include "link/links.h"

#include "base/clock.h"
#include "base/num.h"
#include "link/link.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

dd_status ddi_links_create(const struct ddi_links_config *config, struct ddi_links **out,
                           dd_error *err)
{
    struct ddi_links *links = calloc(1, sizeof(*links));

    if (links == NULL) {
        return ddi_fail(err, DD_NO_MEMORY, "links");
    }
    links->config = *config;
    links->listener.fd = -1;
    ddi_mutex_init(&links->mu, DDI_RANK_LINKS);
    ddi_cond_init(&links->changed);
    ddi_map_init(&links->by_id);
    *out = links;
    return DD_OK;
}

void ddi_links_destroy(struct ddi_links *links)
{
    if (links == NULL) {
        return;
    }
    ddi_map_fini(&links->by_id);
    ddi_cond_fini(&links->changed);
    ddi_mutex_fini(&links->mu);
    free(links);
}

/* Check and resolve one target into a link that waits to be started. Status of that target. */
static dd_status prepare(struct ddi_links *links, const dd_target *target, struct ddi_link **out,
                         dd_error *err)
{
    struct ddi_link *link = ddi_link_create(links, true, target->cluster_id);
    dd_status st = DD_OK;

    if (link == NULL) {
        return ddi_fail(err, DD_NO_MEMORY, "link to cluster %" PRIu64, target->cluster_id);
    }
    if (target->remote == NULL) {
        st = ddi_fail(err, DD_INVALID, "cluster %" PRIu64 " has no remote address",
                      target->cluster_id);
    }
    if (st == DD_OK) {
        st = ddi_addr_resolve(target->remote, link->addrs, DDI_LINK_ADDRS, &link->addr_count, err);
    }
    if (st == DD_OK && target->local != NULL) {
        st = ddi_addr_host(target->local, &link->local, err);
    }
    if (st != DD_OK) {
        free(link);
        return st;
    }
    *out = link;
    return DD_OK;
}

/* Take the place of this cluster in the map, unless it is taken. */
static dd_status enter_locked(struct ddi_links *links, struct ddi_link *link, dd_error *err)
{
    struct ddi_link *older = ddi_map_get(&links->by_id, ddi_link_key(link->cluster_id));
    dd_status st;

    if (links->is_stopped) {
        return ddi_fail(err, DD_FINALIZED, "engine is stopped");
    }
    if (older != NULL) {
        return older->phase == DDI_LINK_STANDS
                   ? ddi_fail(err, DD_ALREADY_LINKED, "cluster %" PRIu64 " is linked already",
                              link->cluster_id)
                   : ddi_fail(err, DD_LINK_IN_PROGRESS,
                              "a link or unlink of cluster %" PRIu64 " is running",
                              link->cluster_id);
    }
    st = ddi_map_put(&links->by_id, ddi_link_key(link->cluster_id), link, err);
    if (st == DD_OK) {
        link->is_mapped = true;
        link->next = links->all;
        links->all = link;
    }
    return st;
}

struct end_call {
    struct ddi_link *link;
    dd_error reason;
    bool say_bye;
};

static void end_on_loop(void *context)
{
    struct end_call *call = context;

    ddi_link_end(call->link, &call->reason, call->say_bye);
}

/* Wait until the handshake is decided; end it when it is not in time. */
static dd_status wait_linked(struct ddi_links *links, struct ddi_link *link,
                             const dd_target *target, uint64_t deadline_ns, uint32_t timeout_ms,
                             dd_error *err)
{
    struct end_call call = {.link = link};
    dd_status st = DD_OK;
    bool is_late = false;

    ddi_mutex_lock(&links->mu);
    while (link->phase == DDI_LINK_OPENING && !is_late) {
        is_late = ddi_cond_wait_until(&links->changed, &links->mu, deadline_ns);
    }
    if (link->phase == DDI_LINK_OPENING) {
        ddi_mutex_unlock(&links->mu);
        (void)ddi_fail(&call.reason, DD_TIMEOUT, "no answer within %u ms", timeout_ms);
        ddi_loop_call(links->config.loop, end_on_loop, &call);
        ddi_mutex_lock(&links->mu);
    }
    if (link->phase == DDI_LINK_OVER) {
        st = link->outcome.status;
        if (st != DD_TIMEOUT && st != DD_FINALIZED && st != DD_NO_MEMORY) {
            st = DD_LINK_FAILED;
        }
        if (err != NULL) {
            *err = link->outcome;
            err->status = st;
            ddi_error_context(err, "cannot link with cluster %" PRIu64 " at %s", target->cluster_id,
                              target->remote);
        }
    }
    ddi_link_put_locked(link);
    ddi_mutex_unlock(&links->mu);
    return st;
}

static bool is_repeated(const dd_target *targets, size_t at)
{
    for (size_t i = 0; i < at; i++) {
        if (targets[i].cluster_id == targets[at].cluster_id) {
            return true;
        }
    }
    return false;
}

/* Start the link of one target. On failure *out stays NULL. */
static dd_status start(struct ddi_links *links, const dd_target *targets, size_t at,
                       uint64_t deadline_ns, struct ddi_link **out, dd_error *err)
{
    struct ddi_link *link = NULL;
    dd_status st;

    if (is_repeated(targets, at)) {
        return ddi_fail(err, DD_REPEATED, "cluster %" PRIu64 " stands in this call twice",
                        targets[at].cluster_id);
    }
    st = prepare(links, &targets[at], &link, err);
    if (st != DD_OK) {
        return st;
    }
    link->dial_deadline_ns = deadline_ns;
    link->start_task = (struct ddi_task){.fn = ddi_link_start_client, .context = link};
    ddi_mutex_lock(&links->mu);
    st = enter_locked(links, link, err);
    if (st == DD_OK) {
        ddi_loop_post(links->config.loop, &link->start_task);
    }
    ddi_mutex_unlock(&links->mu);
    if (st != DD_OK) {
        free(link);
        return st;
    }
    *out = link;
    return DD_OK;
}

/* What a call over several targets returns: the last failure. */
static void note(dd_status *overall, dd_error *err, dd_status st, const dd_error *why)
{
    if (st != DD_OK) {
        *overall = st;
        if (err != NULL) {
            *err = *why;
        }
    }
}

dd_status ddi_links_open(struct ddi_links *links, const dd_target *targets, size_t n,
                         dd_status *results, uint32_t timeout_ms, dd_error *err)
{
    uint64_t deadline_ns = ddi_deadline_ns(timeout_ms);
    struct ddi_link **started = calloc(n, sizeof(*started));
    dd_status overall = DD_OK;

    if (started == NULL) {
        return ddi_fail(err, DD_NO_MEMORY, "link of %zu clusters", n);
    }
    for (size_t i = 0; i < n; i++) {
        dd_error why = {0};

        results[i] = start(links, targets, i, deadline_ns, &started[i], &why);
        note(&overall, err, results[i], &why);
    }
    for (size_t i = 0; i < n; i++) {
        dd_error why = {0};

        if (started[i] != NULL) {
            results[i] = wait_linked(links, started[i], &targets[i], deadline_ns, timeout_ms, &why);
            note(&overall, err, results[i], &why);
        }
    }
    free(started);
    return overall;
}

struct close_call {
    struct ddi_link *link;
    uint64_t deadline_ns;
};

static void close_on_loop(void *context)
{
    struct close_call *call = context;
    struct ddi_peer_event event = {.type = DDI_EV_CLOSE, .deadline_ns = call->deadline_ns};

    ddi_link_step(call->link, &event);
}

/* Take a standing link out of use. Status of that target; on DD_OK the caller holds a reference. */
static dd_status begin_close(struct ddi_links *links, const dd_target *target,
                             struct ddi_link **out, dd_error *err)
{
    struct ddi_link *link;
    dd_status st = DD_OK;

    ddi_mutex_lock(&links->mu);
    link = ddi_map_get(&links->by_id, ddi_link_key(target->cluster_id));
    if (link == NULL) {
        st = ddi_fail(err, DD_NOT_LINKED, "cluster %" PRIu64 " is not linked", target->cluster_id);
    } else if (link->phase != DDI_LINK_STANDS) {
        st = ddi_fail(err, DD_LINK_IN_PROGRESS,
                      "a link or unlink of cluster %" PRIu64 " is running", target->cluster_id);
    } else {
        link->phase = DDI_LINK_CLOSING;
        link->refs++;
        *out = link;
    }
    ddi_mutex_unlock(&links->mu);
    return st;
}

/* Orderly: running transfers end first, then the peer is told. */
static dd_status drain(struct ddi_links *links, struct ddi_link *link, uint64_t deadline_ns,
                       dd_error *err)
{
    struct close_call call = {.link = link, .deadline_ns = deadline_ns};
    bool is_late = false;
    bool is_idle;

    ddi_mutex_lock(&links->mu);
    while (link->users > 0 && link->phase != DDI_LINK_OVER && !is_late) {
        is_late = ddi_cond_wait_until(&links->changed, &links->mu, deadline_ns);
    }
    is_idle = link->users == 0;
    ddi_mutex_unlock(&links->mu);
    if (!is_idle) {
        return ddi_fail(err, DD_TIMEOUT,
                        "transfers with cluster %" PRIu64 " did not end in time; link was cut",
                        link->cluster_id);
    }
    ddi_loop_call(links->config.loop, close_on_loop, &call);
    ddi_mutex_lock(&links->mu);
    while (link->phase != DDI_LINK_OVER) { /* the loop ends it at the deadline */
        (void)ddi_cond_wait_until(&links->changed, &links->mu, DDI_NEVER);
    }
    ddi_mutex_unlock(&links->mu);
    if (link->outcome.status == DD_PEER_NOT_TOLD) {
        return ddi_fail(err, DD_PEER_NOT_TOLD,
                        "unlinked from cluster %" PRIu64 ", but the peer did not answer: %s",
                        link->cluster_id, link->outcome.text);
    }
    return DD_OK;
}

static dd_status close_one(struct ddi_links *links, struct ddi_link *link, uint64_t deadline_ns,
                           bool force, dd_error *err)
{
    struct end_call call = {.link = link};
    dd_status st = DD_OK;

    if (!force) {
        st = drain(links, link, deadline_ns, err);
    }
    (void)ddi_fail(&call.reason, DD_NOT_LINKED, "unlinked at this side");
    ddi_loop_call(links->config.loop, end_on_loop, &call); /* nothing to do when it is over */
    ddi_mutex_lock(&links->mu);
    ddi_link_put_locked(link);
    ddi_mutex_unlock(&links->mu);
    return st;
}

dd_status ddi_links_close(struct ddi_links *links, const dd_target *targets, size_t n,
                          dd_status *results, uint32_t timeout_ms, bool force, dd_error *err)
{
    uint64_t deadline_ns = ddi_deadline_ns(timeout_ms);
    dd_status overall = DD_OK;

    for (size_t i = 0; i < n; i++) {
        struct ddi_link *link = NULL;
        dd_error why = {0};

        results[i] = is_repeated(targets, i)
                         ? ddi_fail(&why, DD_REPEATED,
                                    "cluster %" PRIu64 " stands in this call twice",
                                    targets[i].cluster_id)
                         : begin_close(links, &targets[i], &link, &why);
        if (results[i] == DD_OK) {
            results[i] = close_one(links, link, deadline_ns, force, &why);
        }
        note(&overall, err, results[i], &why);
    }
    return overall;
}

dd_status ddi_links_use(struct ddi_links *links, uint64_t cluster_id, struct ddi_link **out,
                        struct ddi_channel **channel, dd_error *err)
{
    struct ddi_link *link;
    dd_status st = DD_OK;

    ddi_mutex_lock(&links->mu);
    link = ddi_map_get(&links->by_id, ddi_link_key(cluster_id));
    if (link == NULL || link->phase != DDI_LINK_STANDS) {
        st = ddi_fail(err, DD_NOT_LINKED, "cluster %" PRIu64 " is not linked%s", cluster_id,
                      link == NULL ? "" : " (a link or unlink is running)");
    } else {
        link->refs++;
        link->users++;
        *out = link;
        *channel = link->channel;
    }
    ddi_mutex_unlock(&links->mu);
    return st;
}

void ddi_links_done(struct ddi_links *links, struct ddi_link *link)
{
    ddi_mutex_lock(&links->mu);
    link->users--;
    if (link->phase != DDI_LINK_STANDS) {
        ddi_cond_broadcast(&links->changed); /* an unlink may wait for us */
    }
    ddi_link_put_locked(link);
    ddi_mutex_unlock(&links->mu);
}

uint64_t ddi_links_count(struct ddi_links *links)
{
    uint64_t count;

    ddi_mutex_lock(&links->mu);
    count = links->standing;
    ddi_mutex_unlock(&links->mu);
    return count;
}

struct stop_call {
    struct ddi_links *links;
    const dd_error *reason;
};

static void stop_on_loop(void *context)
{
    const struct stop_call *call = context;
    struct ddi_links *links = call->links;

    ddi_listener_close(links);
    for (;;) {
        struct ddi_link *link;

        ddi_mutex_lock(&links->mu);
        for (link = links->all; link != NULL && link->phase == DDI_LINK_OVER; link = link->next) {
        }
        ddi_mutex_unlock(&links->mu);
        if (link == NULL) {
            return;
        }
        /* A link that a caller has entered but the loop has not started yet: its start task comes
         * later and finds it dead. */
        ddi_link_end(link, call->reason, true);
    }
}

void ddi_links_stop(struct ddi_links *links, const dd_error *reason)
{
    struct stop_call call = {.links = links, .reason = reason};

    ddi_mutex_lock(&links->mu);
    links->is_stopped = true;
    ddi_mutex_unlock(&links->mu);
    ddi_loop_call(links->config.loop, stop_on_loop, &call);
}

/* Which peers the listener lets in: one link per cluster. Loop's thread.
 *
 * A peer whose cluster is linked already is let in when the older link is its own, or does not answer
 * any more; while it is alive the newcomer is refused. */
#include "link/admission.h"

#include "base/clock.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/random.h>

#define PROBE_MS 500

static void admit(struct ddi_link *link)
{
    struct ddi_peer_event event = {.type = DDI_EV_ADMIT};
    uint8_t token[DDI_TOKEN];

    if (getrandom(token, sizeof(token), 0) != (ssize_t)sizeof(token)) {
        dd_error err;

        (void)ddi_fail_system(&err, DD_FAILED, errno, "no random bytes for a link token");
        ddi_link_end(link, &err, false);
        return;
    }
    event.token = token;
    ddi_link_step(link, &event);
}

static void deny(struct ddi_link *link, const dd_error *err)
{
    struct ddi_peer_event event = {.type = DDI_EV_DENY, .error = err};

    ddi_link_step(link, &event);
}

/* Nobody else has this id: take it and let the peer in. */
static void take_id_and_admit(struct ddi_link *link)
{
    dd_error err = {0};

    ddi_mutex_lock(&link->links->mu);
    link->cluster_id = link->peer.cluster_id;
    link->is_mapped = ddi_map_put(&link->links->by_id, ddi_link_key(link->cluster_id), link,
                                  &err) == DD_OK;
    ddi_mutex_unlock(&link->links->mu);
    if (link->is_mapped) {
        admit(link);
    } else {
        deny(link, &err);
    }
}

void ddi_admission_settle(struct ddi_link *newer, bool is_alive)
{
    struct ddi_link *older = newer->probed;
    char found[DDI_ADDR_TEXT];
    char known[DDI_ADDR_TEXT];
    dd_error err;

    ddi_loop_clear_timer(newer->links->config.loop, &newer->probe_timer);
    newer->probed = NULL;
    older->prober = NULL;
    if (newer->is_dead) {
        return;
    }
    if (!is_alive) {
        take_id_and_admit(newer);
        return;
    }
    ddi_link_text(newer, found);
    ddi_link_text(older, known);
    (void)ddi_fail(&err, DD_LINK_FAILED,
                   "cluster %" PRIu64 " is linked from %s and alive; refused another one at %s",
                   older->peer.cluster_id, known, found);
    deny(newer, &err);
}

static void on_probe_timeout(void *context)
{
    struct ddi_link *newer = context;
    struct ddi_link *older = newer->probed;
    dd_error err;

    (void)ddi_fail(&err, DD_NOT_LINKED, "peer lost: no answer to a probe for %d ms", PROBE_MS);
    ddi_link_end(older, &err, false); /* settles this probe */
}

void ddi_admission_decide(struct ddi_link *link)
{
    struct ddi_links *links = link->links;
    const struct ddi_peer *peer = &link->peer;
    struct ddi_link *older;
    struct ddi_peer_event event = {.type = DDI_EV_PROBE};
    dd_error err;

    if (memcmp(peer->generation, links->config.identity.generation, DDI_GENERATION) == 0) {
        admit(link); /* a link to ourselves: its client half is the one in the map */
        return;
    }
    ddi_mutex_lock(&links->mu);
    older = ddi_map_get(&links->by_id, ddi_link_key(peer->cluster_id));
    ddi_mutex_unlock(&links->mu);
    if (older == NULL) {
        take_id_and_admit(link);
    } else if (older->peer.state < DDI_PEER_LINKED) {
        (void)ddi_fail(&err, DD_LINK_IN_PROGRESS,
                       "a link with cluster %" PRIu64 " is being made already", peer->cluster_id);
        deny(link, &err);
    } else if (memcmp(peer->generation, older->peer.generation, DDI_GENERATION) == 0) {
        (void)ddi_fail(&err, DD_NOT_LINKED, "replaced: the peer has linked anew");
        ddi_link_end(older, &err, false);
        take_id_and_admit(link);
    } else if (older->prober != NULL) {
        (void)ddi_fail(&err, DD_LINK_IN_PROGRESS,
                       "another link with cluster %" PRIu64 " is being decided", peer->cluster_id);
        deny(link, &err);
    } else {
        event.deadline_ns = ddi_deadline_ns(2 * PROBE_MS); /* the probe's timer comes first */
        link->probed = older;
        older->prober = link;
        ddi_link_step(link, &event);
        link->probe_timer = (struct ddi_timer){.fn = on_probe_timeout, .context = link};
        ddi_loop_set_timer(links->config.loop, &link->probe_timer, ddi_deadline_ns(PROBE_MS));
        ddi_link_send(older, DDI_PING);
    }
}

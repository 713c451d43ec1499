/* Public functions: the engine itself. Start and stop are exclusive; all other calls are counted, so
 * that stop can wait for them. */
#include "api/engine_state.h"

#include "base/clock.h"
#include "device/device.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

dd_status ddi_engine_enter(dd_engine *engine, dd_error *err)
{
    if (engine == NULL) {
        return ddi_fail(err, DD_INVALID, "engine is NULL");
    }
    /* Sequentially consistent on both sides: either stop sees this call, or the call sees stop. */
    atomic_fetch_add(&engine->calls, 1);
    if (atomic_load(&engine->phase) == DDI_ENGINE_RUNNING) {
        return DD_OK;
    }
    ddi_engine_leave(engine);
    return ddi_fail(err, DD_FINALIZED, "engine is not running");
}

void ddi_engine_leave(dd_engine *engine)
{
    if (atomic_fetch_sub(&engine->calls, 1) == 1 &&
        atomic_load(&engine->phase) == DDI_ENGINE_STOPPING) {
        ddi_mutex_lock(&engine->mu);
        ddi_cond_broadcast(&engine->idle);
        ddi_mutex_unlock(&engine->mu);
    }
}

dd_status ddi_engine_check_size(size_t found, size_t smallest, size_t wanted, const char *name,
                                dd_error *err)
{
    if (found >= smallest && found <= wanted) {
        return DD_OK;
    }
    return ddi_fail(err, DD_INVALID, "%s.size is %zu, wanted %zu (sizeof of the struct)", name,
                    found, wanted);
}

dd_status dd_engine_create(uint64_t cluster_id, dd_role role, dd_engine **engine, dd_error *err)
{
    dd_status st;
    dd_engine *e;

    if (engine == NULL) {
        return ddi_fail(err, DD_INVALID, "engine is NULL");
    }
    if (role != DD_ROLE_PROMPT && role != DD_ROLE_DECODER && role != DD_ROLE_MIX) {
        return ddi_fail(err, DD_INVALID, "role is %d, wanted 1 (prompt), 2 (decoder) or 3 (mix)",
                        (int)role);
    }
    e = calloc(1, sizeof(*e));
    if (e == NULL) {
        return ddi_fail(err, DD_NO_MEMORY, "engine");
    }
    e->cluster_id = cluster_id;
    e->role = role;
    atomic_init(&e->phase, DDI_ENGINE_NEW);
    ddi_mutex_init(&e->mu, DDI_RANK_ENGINE);
    ddi_cond_init(&e->idle);
    ddi_xfer_init(&e->xfer);
    st = ddi_config_init(&e->config, err);
    if (st != DD_OK) {
        dd_engine_destroy(e);
        return st;
    }
    *engine = e;
    return DD_OK;
}

static dd_status check_new(dd_engine *engine, dd_error *err)
{
    if (engine == NULL) {
        return ddi_fail(err, DD_INVALID, "engine is NULL");
    }
    switch (atomic_load(&engine->phase)) {
    case DDI_ENGINE_NEW:
        return DD_OK;
    case DDI_ENGINE_RUNNING:
        return ddi_fail(err, DD_INVALID, "engine is started already");
    default:
        return ddi_fail(err, DD_FINALIZED, "engine is stopped");
    }
}

dd_status dd_engine_set(dd_engine *engine, const char *key, const char *value, dd_error *err)
{
    dd_status st = check_new(engine, err);

    if (st == DD_OK && (key == NULL || value == NULL)) {
        st = ddi_fail(err, DD_INVALID, "%s is NULL", key == NULL ? "key" : "value");
    }
    return st == DD_OK ? ddi_config_set(&engine->config, key, value, err) : st;
}

dd_status dd_engine_set_log(dd_engine *engine, dd_log_fn fn, void *context, dd_error *err)
{
    dd_status st = check_new(engine, err);

    if (st == DD_OK) {
        engine->log.fn = fn;
        engine->log.context = context;
    }
    return st;
}

static dd_log_level level_of(const char *name)
{
    static const char *const names[] = {"debug", "info", "warning", "error"};

    for (int i = 0; i < 4; i++) {
        if (strcmp(name, names[i]) == 0) {
            return (dd_log_level)i;
        }
    }
    return DD_LOG_OFF;
}

static dd_status open_store(dd_engine *e, dd_error *err)
{
    struct ddi_pool_config config = {.device = &ddi_cpu_device,
                                     .limit_bytes = e->config.pool_bytes,
                                     .limit_fraction = e->config.pool_fraction,
                                     .clear = strcmp(e->config.pool_clear, "on") == 0};
    dd_status st = ddi_pool_create(&config, &e->pool, err);

    return st == DD_OK ? ddi_table_create(e->pool, 1, &e->xfer.table, err) : st;
}

static dd_status open_network(dd_engine *e, dd_error *err)
{
    const struct ddi_config *config = &e->config;
    struct ddi_tcp_config tcp = {.streams = (uint32_t)config->tcp_streams,
                                 .loops = (uint32_t)config->workers,
                                 .workers = (uint32_t)config->workers,
                                 .stream_bytes = config->tcp_stream_bytes,
                                 .idle_ms = (uint32_t)config->tcp_idle_ms,
                                 .congestion = config->tcp_congestion,
                                 .log = &e->log,
                                 .owner = &ddi_xfer_owner_ops};
    struct ddi_links_config links = {.log = &e->log, .owner = &e->xfer};
    dd_status st = ddi_loop_open("dd-loop", &e->loop, err);

    if (st == DD_OK) {
        st = ddi_tcp_open(&tcp, &e->tcp, err);
    }
    if (st != DD_OK) {
        return st;
    }
    links.loop = e->loop;
    links.tcp = e->tcp;
    links.identity.cluster_id = e->cluster_id;
    links.identity.role = (uint8_t)e->role;
    links.identity.heartbeat_ms = (uint32_t)config->heartbeat_ms;
    links.identity.handshake_ms = (uint32_t)config->handshake_ms;
    if (getrandom(links.identity.generation, DDI_GENERATION, 0) != DDI_GENERATION) {
        return ddi_fail_system(err, DD_FAILED, errno, "no random bytes for the generation id");
    }
    st = ddi_links_create(&links, &e->links, err);
    if (st == DD_OK && config->listen[0] != '\0') {
        st = ddi_links_listen(e->links, config->listen, err);
    }
    return st;
}

/* End everything that start began. The engine has no calls inside. */
static void close_all(dd_engine *e)
{
    dd_error reason;

    (void)ddi_fail(&reason, DD_FINALIZED, "engine is stopped");
    if (e->links != NULL) {
        ddi_links_stop(e->links, &reason);
    }
    ddi_loop_close(e->loop);
    ddi_tcp_close(e->tcp); /* the last channels end with its threads */
    ddi_links_destroy(e->links);
    ddi_table_destroy(e->xfer.table);
    ddi_pool_put(e->pool);
    e->links = NULL;
    e->loop = NULL;
    e->tcp = NULL;
    e->pool = NULL;
    e->xfer.table = NULL;
}

dd_status dd_engine_start(dd_engine *engine, dd_error *err)
{
    dd_status st = check_new(engine, err);

    if (st != DD_OK) {
        return st;
    }
    engine->log.level = level_of(engine->config.log_level);
    st = open_store(engine, err);
    if (st == DD_OK) {
        st = open_network(engine, err);
    }
    if (st != DD_OK) {
        close_all(engine);
        return st;
    }
    engine->xfer.links = engine->links;
    engine->xfer.sync_timeout_ms = (uint32_t)engine->config.sync_timeout_ms;
    atomic_store(&engine->phase, DDI_ENGINE_RUNNING);
    return DD_OK;
}

dd_status dd_engine_address(dd_engine *engine, char *text, size_t length, dd_error *err)
{
    char address[DDI_ADDR_TEXT];
    dd_status st = ddi_engine_enter(engine, err);

    if (st != DD_OK) {
        return st;
    }
    ddi_links_address(engine->links, address);
    if (text == NULL || strlen(address) >= length) {
        st = ddi_fail(err, DD_INVALID, "text has room for %zu bytes, wanted %zu",
                      text == NULL ? 0 : length, strlen(address) + 1);
    } else {
        (void)memcpy(text, address, strlen(address) + 1);
    }
    ddi_engine_leave(engine);
    return st;
}

void dd_engine_stop(dd_engine *engine)
{
    dd_error reason;
    bool is_mine = false;

    if (engine == NULL) {
        return;
    }
    ddi_mutex_lock(&engine->mu);
    if (atomic_load(&engine->phase) == DDI_ENGINE_NEW) {
        atomic_store(&engine->phase, DDI_ENGINE_STOPPED);
    }
    if (atomic_load(&engine->phase) == DDI_ENGINE_RUNNING) {
        atomic_store(&engine->phase, DDI_ENGINE_STOPPING);
        is_mine = true;
    }
    ddi_mutex_unlock(&engine->mu);
    if (is_mine) {
        (void)ddi_fail(&reason, DD_FINALIZED, "engine is stopped");
        ddi_links_stop(engine->links, &reason);
    }
    ddi_mutex_lock(&engine->mu);
    while (is_mine && atomic_load(&engine->calls) > 0) {
        (void)ddi_cond_wait_until(&engine->idle, &engine->mu, DDI_NEVER);
    }
    while (!is_mine && atomic_load(&engine->phase) != DDI_ENGINE_STOPPED) {
        (void)ddi_cond_wait_until(&engine->idle, &engine->mu, DDI_NEVER);
    }
    ddi_mutex_unlock(&engine->mu);
    if (is_mine) {
        close_all(engine);
        ddi_mutex_lock(&engine->mu);
        atomic_store(&engine->phase, DDI_ENGINE_STOPPED);
        ddi_cond_broadcast(&engine->idle);
        ddi_mutex_unlock(&engine->mu);
    }
}

void dd_engine_destroy(dd_engine *engine)
{
    if (engine == NULL) {
        return;
    }
    dd_engine_stop(engine);
    ddi_xfer_fini(&engine->xfer);
    ddi_cond_fini(&engine->idle);
    ddi_mutex_fini(&engine->mu);
    free(engine);
}

dd_status dd_stats_get(dd_engine *engine, dd_stats *stats, dd_error *err)
{
    struct ddi_xfer_counters *counters;
    struct ddi_pool_stats pool;
    struct ddi_table_stats table;
    dd_stats all = {0};
    dd_status st = ddi_engine_enter(engine, err);

    if (st != DD_OK) {
        return st;
    }
    st = stats == NULL
             ? ddi_fail(err, DD_INVALID, "stats is NULL")
             : ddi_engine_check_size(stats->size, sizeof(size_t), sizeof(all), "stats", err);
    if (st == DD_OK) {
        counters = &engine->xfer.counters;
        ddi_pool_stats(engine->pool, &pool);
        ddi_table_stats(engine->xfer.table, &table);
        all.size = stats->size;
        all.links = ddi_links_count(engine->links);
        all.caches = table.caches;
        all.keys = table.keys;
        all.pins = table.pins;
        all.pulls = atomic_load_explicit(&counters->pulls, memory_order_relaxed);
        all.pulls_failed = atomic_load_explicit(&counters->pulls_failed, memory_order_relaxed);
        all.bytes_pulled = atomic_load_explicit(&counters->bytes_pulled, memory_order_relaxed);
        all.serves = atomic_load_explicit(&counters->serves, memory_order_relaxed);
        all.serves_failed = atomic_load_explicit(&counters->serves_failed, memory_order_relaxed);
        all.bytes_served = atomic_load_explicit(&counters->bytes_served, memory_order_relaxed);
        all.pool_limit_bytes = pool.limit_bytes;
        all.pool_used_bytes = pool.used_bytes;
        all.pool_peak_bytes = pool.peak_bytes;
        all.pool_largest_free = pool.largest_free;
        (void)memcpy(stats, &all, stats->size);
    }
    ddi_engine_leave(engine);
    return st;
}

/* The inside of an engine, shared by the files of the public functions. */
#ifndef DDI_ENGINE_STATE_H
#define DDI_ENGINE_STATE_H

#include "api/config.h"
#include "base/log.h"
#include "base/mutex.h"
#include "xfer/xfer.h"

#include <stdatomic.h>

enum ddi_engine_phase {
    DDI_ENGINE_NEW,
    DDI_ENGINE_RUNNING,
    DDI_ENGINE_STOPPING,
    DDI_ENGINE_STOPPED
};

struct dd_engine {
    uint64_t cluster_id;      /* constant */
    dd_role role;             /* constant */
    struct ddi_config config; /* constant once running */
    struct ddi_log log;       /* constant once running */
    atomic_int phase;         /* enum ddi_engine_phase; changed under mu */
    atomic_uint calls;        /* public calls inside the engine */
    struct ddi_mutex mu;      /* rank DDI_RANK_ENGINE */
    struct ddi_cond idle;     /* phase changed, or calls fell to 0 while stopping */
    /* Constant while running. */
    struct ddi_loop *loop;
    struct ddi_tcp *tcp;
    struct ddi_links *links;
    struct ddi_pool *pool;
    struct ddi_xfer xfer;
};

/* Begin a public call: DD_OK while the engine runs, then ddi_engine_leave ends it. DD_FINALIZED. */
dd_status ddi_engine_enter(dd_engine *engine, dd_error *err);
void ddi_engine_leave(dd_engine *engine);

/* Whether a parameter struct has the size of this version or an older, smaller one. */
dd_status ddi_engine_check_size(size_t found, size_t smallest, size_t wanted, const char *name,
                                dd_error *err);

#endif

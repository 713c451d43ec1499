/* Log lines for events that nobody waits for. One sink per engine; any thread. */
#ifndef DDI_LOG_H
#define DDI_LOG_H

#include "datadist.h"

struct ddi_log {
    dd_log_fn fn; /* NULL: standard error */
    void *context;
    dd_log_level level; /* constant once the engine runs */
};

void ddi_log(const struct ddi_log *log, dd_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif

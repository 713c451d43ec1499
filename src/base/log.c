/* Log lines to the engine's sink. */
#include "base/log.h"

#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>

static const char *level_name(dd_log_level level)
{
    switch (level) {
    case DD_LOG_DEBUG:
        return "debug";
    case DD_LOG_INFO:
        return "info";
    case DD_LOG_WARNING:
        return "warning";
    default:
        return "error";
    }
}

void ddi_log(const struct ddi_log *log, dd_log_level level, const char *format, ...)
{
    char line[DD_ERROR_TEXT + 128];
    va_list args;

    if (level < log->level || log->level == DD_LOG_OFF) {
        return;
    }
    va_start(args, format);
    (void)vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    if (log->fn != NULL) {
        log->fn(log->context, level, line);
    } else {
        /* One call, so that lines of several threads do not mix. */
        (void)fprintf(stderr, "datadist %s: %s\n", level_name(level), line);
    }
}

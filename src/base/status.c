/* Status names and error texts. */
#include "base/status.h"

#undef ddi_fail
#undef ddi_fail_system

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static void put_text(dd_error *err, const char *format, va_list args)
{
    if (vsnprintf(err->text, sizeof(err->text), format, args) < 0) {
        err->text[0] = '\0';
    }
}

dd_status ddi_fail(dd_error *err, dd_status status, const char *format, ...)
{
    va_list args;

    if (err != NULL) {
        err->status = status;
        err->system_error = 0;
        va_start(args, format);
        put_text(err, format, args);
        va_end(args);
    }
    return status;
}

dd_status ddi_fail_system(dd_error *err, dd_status status, int system_error, const char *format,
                          ...)
{
    va_list args;
    size_t len;
    char reason[96];

    if (err != NULL) {
        err->status = status;
        err->system_error = system_error;
        va_start(args, format);
        put_text(err, format, args);
        va_end(args);
        len = strlen(err->text);
        /* The GNU variant returns the text, which may live outside the buffer. */
        (void)snprintf(err->text + len, sizeof(err->text) - len, ": %s",
                       strerror_r(system_error, reason, sizeof(reason)));
    }
    return status;
}

void ddi_error_context(dd_error *err, const char *format, ...)
{
    char text[DD_ERROR_TEXT];
    va_list args;
    size_t len;

    if (err == NULL) {
        return;
    }
    (void)memcpy(text, err->text, sizeof(text));
    va_start(args, format);
    put_text(err, format, args);
    va_end(args);
    len = strlen(err->text);
    (void)snprintf(err->text + len, sizeof(err->text) - len, ": %s", text);
}

const char *dd_status_name(dd_status status)
{
    static const struct {
        dd_status status;
        const char *name;
    } names[] = {
        {DD_OK, "DD_OK"},
        {DD_FAILED, "DD_FAILED"},
        {DD_NO_CACHE, "DD_NO_CACHE"},
        {DD_REPEATED, "DD_REPEATED"},
        {DD_COMPLETED, "DD_COMPLETED"},
        {DD_INVALID, "DD_INVALID"},
        {DD_FINALIZED, "DD_FINALIZED"},
        {DD_NOT_LINKED, "DD_NOT_LINKED"},
        {DD_ALREADY_LINKED, "DD_ALREADY_LINKED"},
        {DD_LINK_FAILED, "DD_LINK_FAILED"},
        {DD_UNLINK_FAILED, "DD_UNLINK_FAILED"},
        {DD_PEER_NOT_TOLD, "DD_PEER_NOT_TOLD"},
        {DD_TOO_MANY_CLUSTERS, "DD_TOO_MANY_CLUSTERS"},
        {DD_LINK_IN_PROGRESS, "DD_LINK_IN_PROGRESS"},
        {DD_PREFIX_EXISTS, "DD_PREFIX_EXISTS"},
        {DD_NO_PREFIX, "DD_NO_PREFIX"},
        {DD_TOO_LONG, "DD_TOO_LONG"},
        {DD_NO_FREE_BLOCK, "DD_NO_FREE_BLOCK"},
        {DD_BLOCKS_NO_MEMORY, "DD_BLOCKS_NO_MEMORY"},
        {DD_KEY_EXISTS, "DD_KEY_EXISTS"},
        {DD_LINKS_EXIST, "DD_LINKS_EXIST"},
        {DD_NOT_ENABLED, "DD_NOT_ENABLED"},
        {DD_TIMEOUT, "DD_TIMEOUT"},
        {DD_LINK_BUSY, "DD_LINK_BUSY"},
        {DD_NO_MEMORY, "DD_NO_MEMORY"},
    };

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (names[i].status == status) {
            return names[i].name;
        }
    }
    return "unknown status";
}

const char *dd_version(void)
{
    return DD_VERSION;
}

/* Status codes and error texts. Pure; any thread. */
#ifndef DDI_STATUS_H
#define DDI_STATUS_H

#include "datadist.h"

/* Internal statuses; they never leave the library. As signed numbers they are negative. */
#define DDI_AGAIN UINT32_C(0xFFFFFFFE)       /* not now: no text, no log */
#define DDI_UNSUPPORTED UINT32_C(0xFFFFFFFD) /* not here: normal, not logged */

/* Fill `err` (may be NULL) and return `status`, so that a caller can return the call. */
dd_status ddi_fail(dd_error *err, dd_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The same with ": <what the system says about system_error>" behind the text. */
dd_status ddi_fail_system(dd_error *err, dd_status status, int system_error, const char *format,
                          ...) __attribute__((format(printf, 4, 5)));

/* Put a context in front of the text of a filled error: "<context>: <text>". */
void ddi_error_context(dd_error *err, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The analyzer sees one file at a time: tell it that a failure returns the status it was given. */
#ifdef __clang_analyzer__
int ddi_analyzed(dd_error *err, ...);
#define ddi_fail(err, status, ...) ((void)ddi_analyzed((err), __VA_ARGS__), (dd_status)(status))
#define ddi_fail_system(err, status, ...) \
    ((void)ddi_analyzed((err), __VA_ARGS__), (dd_status)(status))
#endif

#endif

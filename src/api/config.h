/* The options of an engine: one table for parsing, environment and documentation. */
#ifndef DDI_CONFIG_H
#define DDI_CONFIG_H

#include "base/status.h"

#include <stdbool.h>

#define DDI_CONFIG_TEXT 256

struct ddi_config {
    char listen[DDI_CONFIG_TEXT];
    char transport[DDI_CONFIG_TEXT];
    char log_level[DDI_CONFIG_TEXT];
    char pool_clear[DDI_CONFIG_TEXT];
    char tcp_congestion[DDI_CONFIG_TEXT];
    uint64_t sync_timeout_ms;
    uint64_t handshake_ms;
    uint64_t heartbeat_ms;
    uint64_t pool_bytes;
    double pool_fraction;
    uint64_t workers;
    uint64_t tcp_streams;
    uint64_t tcp_stream_bytes;
    uint64_t tcp_idle_ms;
};

/* Set every option to its default, or to what the environment says.
 * Fails: DD_INVALID naming the variable, its value and what is allowed. */
dd_status ddi_config_init(struct ddi_config *config, dd_error *err);

/* Set one option by its full name, "datadist.listen". DD_INVALID as above. */
dd_status ddi_config_set(struct ddi_config *config, const char *key, const char *value,
                         dd_error *err);

/* Facts about option `index` for documentation; false past the last one. */
struct ddi_option_facts {
    const char *name; /* without "datadist." */
    const char *preset;
    char allowed[96];
    const char *meaning;
};
bool ddi_config_facts(size_t index, struct ddi_option_facts *out);

#endif

/* Proves: whatever key and value are given, an option is either set to what was written and allowed,
 * or refused by name with nothing changed.
 *
 * Input: key, a zero byte, value. A key without a dot in front of it gets "datadist." in front, so
 * that few bytes reach an option. */
#include "api/config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_TEXT 4096

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(bool is_true, const char *what, const char *key, const char *value)
{
    if (!is_true) {
        (void)fprintf(stderr, "failed: %s: \"%s\" = \"%s\"\n", what, key, value);
        abort();
    }
}

static bool is_one_of(const char *value, const char *const *choices)
{
    for (; *choices != NULL; choices++) {
        if (strcmp(value, *choices) == 0) {
            return true;
        }
    }
    return false;
}

static bool is_within(uint64_t value, uint64_t min, uint64_t max)
{
    return value >= min && value <= max;
}

static bool is_ended(const char text[DDI_CONFIG_TEXT])
{
    return memchr(text, '\0', DDI_CONFIG_TEXT) != NULL;
}

/* What the engine relies on, said a second time and not by the table. */
static bool is_sound(const struct ddi_config *config)
{
    static const char *const transports[] = {"auto", "tcp", NULL};
    static const char *const levels[] = {"debug", "info", "warning", "error", "off", NULL};
    static const char *const switches[] = {"off", "on", NULL};

    return is_ended(config->listen) && is_ended(config->tcp_congestion) &&
           is_one_of(config->transport, transports) && is_one_of(config->log_level, levels) &&
           is_one_of(config->pool_clear, switches) &&
           is_within(config->sync_timeout_ms, 1, INT32_MAX) &&
           is_within(config->handshake_ms, 10, INT32_MAX) &&
           is_within(config->heartbeat_ms, 0, INT32_MAX) &&
           is_within(config->pool_bytes, 0, INT64_MAX) && config->pool_fraction >= 0.0 &&
           config->pool_fraction <= 1.0 && is_within(config->workers, 1, 16) &&
           is_within(config->tcp_streams, 1, 16) &&
           is_within(config->tcp_stream_bytes, 4096, INT64_MAX) &&
           is_within(config->tcp_idle_ms, 1, INT32_MAX);
}

/* Set twice; the second time changes nothing more. */
static void check_set(const struct ddi_config *before, const char *key, const char *value)
{
    struct ddi_config config = *before;
    struct ddi_config once;
    dd_error err = {0};
    dd_status st = ddi_config_set(&config, key, value, &err);
    char shown[128];

    if (st == DD_OK) {
        check(is_sound(&config), "what is set is allowed", key, value);
        once = config;
        check(ddi_config_set(&config, key, value, NULL) == DD_OK, "it can be set again", key,
              value);
        check(memcmp(&config, &once, sizeof(config)) == 0, "it is the same again", key, value);
        return;
    }
    check(st == DD_INVALID && err.status == st, "a refusal is DD_INVALID", key, value);
    check(memcmp(&config, before, sizeof(config)) == 0, "a refusal changes nothing", key, value);
    (void)snprintf(shown, sizeof(shown), "%.100s", key);
    check(strstr(err.text, shown) != NULL, "a refusal names the option", key, value);
    (void)snprintf(shown, sizeof(shown), "\"%.100s\", wanted ", value);
    check(strstr(err.text, shown) != NULL || strstr(err.text, "does not exist") != NULL,
          "a refusal names the value, or the option as unknown", key, value);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char text[MAX_TEXT];
    char key[MAX_TEXT + sizeof("datadist.")];
    const char *value;
    struct ddi_config config;
    dd_error err = {0};

    if (size + 1 >= sizeof(text)) {
        return 0;
    }
    (void)memcpy(text, data, size);
    text[size] = text[size + 1] = '\0';
    value = text + strlen(text) + 1; /* empty when there is no zero byte */
    (void)snprintf(key, sizeof(key), "%s%s", text[0] == '.' ? "" : "datadist.",
                   text + (text[0] == '.'));
    check(ddi_config_init(&config, &err) == DD_OK && is_sound(&config), "defaults are sound", key,
          err.text);
    check_set(&config, key, value);
    return 0;
}

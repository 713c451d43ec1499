/* The option table. Nowhere else does an option exist. */
#include "api/config.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PREFIX "datadist."

enum kind { KIND_TEXT, KIND_CHOICE, KIND_NUMBER, KIND_FRACTION };

struct option {
    const char *name;
    enum kind kind;
    size_t offset;
    const char *preset; /* NULL: worked out by the machine */
    uint64_t min;
    uint64_t max;
    const char *choices; /* "a|b|c" */
    const char *meaning;
};

#define AT(field) offsetof(struct ddi_config, field)

static const struct option options[] = {
    {"listen", KIND_TEXT, AT(listen), "", 0, 0, NULL,
     "address to listen at, \"host:port\" or \"[v6]:port\"; port 0 takes a free one; empty: none"},
    {"transport", KIND_CHOICE, AT(transport), "auto", 0, 0, "auto|tcp",
     "transports that a link may use, in order of preference"},
    {"sync_timeout_ms", KIND_NUMBER, AT(sync_timeout_ms), "1000", 1, INT32_MAX, NULL,
     "how long a transfer or a link check may take, in milliseconds"},
    {"handshake_ms", KIND_NUMBER, AT(handshake_ms), "5000", 10, INT32_MAX, NULL,
     "how long a connection may stay at the listener without finishing its handshake"},
    {"heartbeat_ms", KIND_NUMBER, AT(heartbeat_ms), "1000", 0, INT32_MAX, NULL,
     "a link without traffic is probed this often, and dead after three missed answers; 0: never"},
    {"pool_bytes", KIND_NUMBER, AT(pool_bytes), "0", 0, INT64_MAX, NULL,
     "most bytes that caches may use; 0: pool_fraction of the machine's memory"},
    {"pool_fraction", KIND_FRACTION, AT(pool_fraction), "0.95", 0, 0, NULL,
     "share of the memory that this process may use which caches may use"},
    {"pool_clear", KIND_CHOICE, AT(pool_clear), "off", 0, 0, "off|on",
     "zero memory that a cache used before when it is allocated again"},
    {"workers", KIND_NUMBER, AT(workers), NULL, 1, 16, NULL,
     "threads that share large transfers, the calling one included, and threads that answer peers; "
     "default: the number of processors, at most 4"},
    {"tcp.streams", KIND_NUMBER, AT(tcp_streams), "2", 1, 16, NULL,
     "data connections that one transfer may use"},
    {"tcp.stream_bytes", KIND_NUMBER, AT(tcp_stream_bytes), "4194304", 4096, INT64_MAX, NULL,
     "a transfer uses one more data connection for each so many bytes"},
    {"tcp.idle_ms", KIND_NUMBER, AT(tcp_idle_ms), "30000", 1, INT32_MAX, NULL,
     "data connections that were not used for this long are closed"},
    {"tcp.congestion", KIND_TEXT, AT(tcp_congestion), "", 0, 0, NULL,
     "congestion control of data connections, as in \"cubic\"; empty: the system's"},
    {"log_level", KIND_CHOICE, AT(log_level), "warning", 0, 0, "debug|info|warning|error|off",
     "least severe lines that are logged"},
};

#define OPTION_COUNT (sizeof(options) / sizeof(options[0]))

static void describe_allowed(const struct option *option, char *text, size_t size)
{
    switch (option->kind) {
    case KIND_CHOICE:
        (void)snprintf(text, size, "%s", option->choices);
        break;
    case KIND_NUMBER:
        (void)snprintf(text, size, "a whole number from %" PRIu64 " to %" PRIu64, option->min,
                       option->max);
        break;
    case KIND_FRACTION:
        (void)snprintf(text, size, "a number from 0.0 to 1.0");
        break;
    case KIND_TEXT:
        (void)snprintf(text, size, "a text of at most %d bytes", DDI_CONFIG_TEXT - 1);
        break;
    }
}

static bool is_choice(const char *choices, const char *value)
{
    size_t len = strlen(value);

    if (strchr(value, '|') != NULL) {
        return false;
    }
    for (const char *at = choices; at != NULL; at = strchr(at, '|')) {
        at += at != choices;
        if (len > 0 && strncmp(at, value, len) == 0 && (at[len] == '|' || at[len] == '\0')) {
            return true;
        }
    }
    return false;
}

static bool parse_number(const struct option *option, const char *value, uint64_t *out)
{
    char *end;

    if (value[0] < '0' || value[0] > '9') {
        return false; /* strtoull takes signs and blanks, we do not */
    }
    errno = 0;
    *out = strtoull(value, &end, 10);
    return errno == 0 && *end == '\0' && *out >= option->min && *out <= option->max;
}

/* By hand: strtod follows the application's locale, and takes signs, exponents and hexadecimal. */
static bool parse_fraction(const char *value, double *out)
{
    double number = 0;
    double scale = 1;
    bool has_point = false;

    if (value[0] < '0' || value[0] > '9') {
        return false;
    }
    for (const char *at = value; *at != '\0'; at++) {
        if (*at == '.' && !has_point) {
            has_point = true;
        } else if (*at >= '0' && *at <= '9') {
            number = number * 10 + (*at - '0');
            scale *= has_point ? 10 : 1;
        } else {
            return false;
        }
    }
    *out = number / scale;
    return *out >= 0.0 && *out <= 1.0;
}

/* Store a value; false when it is not allowed. */
static bool store(struct ddi_config *config, const struct option *option, const char *value)
{
    char *field = (char *)config + option->offset;
    uint64_t number;
    double fraction;

    switch (option->kind) {
    case KIND_CHOICE:
    case KIND_TEXT:
        if (strlen(value) >= DDI_CONFIG_TEXT ||
            (option->kind == KIND_CHOICE && !is_choice(option->choices, value))) {
            return false;
        }
        (void)snprintf(field, DDI_CONFIG_TEXT, "%s", value);
        return true;
    case KIND_NUMBER:
        if (!parse_number(option, value, &number)) {
            return false;
        }
        (void)memcpy(field, &number, sizeof(number));
        return true;
    case KIND_FRACTION:
        if (!parse_fraction(value, &fraction)) {
            return false;
        }
        (void)memcpy(field, &fraction, sizeof(fraction));
        return true;
    }
    return false;
}

static dd_status refuse(const struct option *option, const char *shown, const char *value,
                        dd_error *err)
{
    char allowed[96];

    describe_allowed(option, allowed, sizeof(allowed));
    return ddi_fail(err, DD_INVALID, "%s is \"%.100s\", wanted %s", shown, value, allowed);
}

static void set_workers(struct ddi_config *config)
{
    long count = sysconf(_SC_NPROCESSORS_ONLN);

    config->workers = count < 1 ? 1 : count > 4 ? 4 : (uint64_t)count;
}

/* "tcp.streams" -> "DATADIST_TCP_STREAMS" */
static void variable_name(const struct option *option, char *text, size_t size)
{
    (void)snprintf(text, size, "DATADIST_%s", option->name);
    for (char *at = text; *at != '\0'; at++) {
        if (*at == '.') {
            *at = '_';
        } else if (*at >= 'a' && *at <= 'z') { /* toupper follows the locale */
            *at = (char)(*at - 'a' + 'A');
        }
    }
}

dd_status ddi_config_init(struct ddi_config *config, dd_error *err)
{
    (void)memset(config, 0, sizeof(*config));
    set_workers(config);
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        char variable[64];
        const char *value;

        if (options[i].preset != NULL) {
            (void)store(config, &options[i], options[i].preset);
        }
        variable_name(&options[i], variable, sizeof(variable));
        value = getenv(variable);
        if (value != NULL && !store(config, &options[i], value)) {
            return refuse(&options[i], variable, value, err);
        }
    }
    return DD_OK;
}

dd_status ddi_config_set(struct ddi_config *config, const char *key, const char *value,
                         dd_error *err)
{
    if (strncmp(key, PREFIX, strlen(PREFIX)) == 0) {
        for (size_t i = 0; i < OPTION_COUNT; i++) {
            if (strcmp(options[i].name, key + strlen(PREFIX)) == 0) {
                return store(config, &options[i], value) ? DD_OK
                                                         : refuse(&options[i], key, value, err);
            }
        }
    }
    return ddi_fail(err, DD_INVALID, "option \"%.100s\" does not exist; docs/config.md lists all",
                    key);
}

bool ddi_config_facts(size_t index, struct ddi_option_facts *out)
{
    if (index >= OPTION_COUNT) {
        return false;
    }
    out->name = options[index].name;
    out->preset = options[index].preset == NULL ? "" : options[index].preset;
    out->meaning = options[index].meaning;
    describe_allowed(&options[index], out->allowed, sizeof(out->allowed));
    return true;
}

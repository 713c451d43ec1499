/* Proves: any text is either refused with a reason that names it, or is an address whose text means
 * the same address, with the port that was written.
 *
 * Input: the text. Names that the resolver would take to a network are left out. */
#include "base/addr.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_TEXT 4096
#define MAX_ADDRS 4

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(bool is_true, const char *what, const char *text)
{
    if (!is_true) {
        (void)fprintf(stderr, "failed: %s: \"%s\"\n", what, text);
        abort();
    }
}

/* Whether the host is a name that somebody has to be asked for. */
static bool is_name(const char *text)
{
    const char *colon = strchr(text, ':');
    char host[MAX_TEXT];
    struct in_addr v4;

    if (text[0] == '[' || colon == NULL || strchr(colon + 1, ':') != NULL ||
        colon[1 + strspn(colon + 1, "0123456789")] != '\0') {
        return false; /* refused before anybody is asked */
    }
    (void)memcpy(host, text, (size_t)(colon - text));
    host[colon - text] = '\0';
    return inet_aton(host, &v4) == 0;
}

static void check_refused(const char *text, dd_status st, const dd_error *err)
{
    char quoted[128];

    check(st == DD_INVALID && err->status == st, "a text is invalid", text);
    (void)snprintf(quoted, sizeof(quoted), "\"%.100s\"", text);
    check(strstr(err->text, quoted) != NULL, "the reason names the text", text);
    check(strlen(err->text) > strlen(quoted) + 10, "the reason says what is wrong", text);
}

static void check_same(const struct ddi_addr *addr, const char *text)
{
    struct ddi_addr again;
    char shown[DDI_ADDR_TEXT];
    char shown_again[DDI_ADDR_TEXT];
    size_t count = 0;
    dd_error err = {0};

    ddi_addr_text(addr, shown);
    check(ddi_addr_resolve(shown, &again, 1, &count, &err) == DD_OK && count == 1,
          "the text of an address is an address", shown);
    check(again.len == addr->len && memcmp(&again.storage, &addr->storage, addr->len) == 0,
          "it is the same address", text);
    ddi_addr_text(&again, shown_again);
    check(strcmp(shown, shown_again) == 0, "it has the same text", text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char text[MAX_TEXT];
    char shown[DDI_ADDR_TEXT];
    struct ddi_addr addrs[MAX_ADDRS];
    struct ddi_addr host;
    size_t count = 0;
    dd_error err = {0};
    dd_status st;

    if (size >= sizeof(text)) {
        return 0;
    }
    (void)memcpy(text, data, size);
    text[size] = '\0';
    st = ddi_addr_host(text, &host, &err);
    if (st == DD_OK) {
        check_same(&host, text);
    } else {
        check_refused(text, st, &err);
    }
    if (is_name(text)) {
        return 0;
    }
    st = ddi_addr_resolve(text, addrs, MAX_ADDRS, &count, &err);
    if (st != DD_OK) {
        check_refused(text, st, &err);
        return 0;
    }
    check(count == 1, "a numeric address is one address", text);
    check_same(&addrs[0], text);
    ddi_addr_text(&addrs[0], shown);
    check(strtoul(strrchr(shown, ':') + 1, NULL, 10) == strtoul(strrchr(text, ':') + 1, NULL, 10),
          "the port is the one that was written", text);
    check((shown[0] == '[') == (text[0] == '['), "the family is the one that was written", text);
    return 0;
}

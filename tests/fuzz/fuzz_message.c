/* Proves: decoders never read outside what they are given, and what decodes encodes to the same
 * bytes (HELLO: but for fields that were skipped; texts: but for what was cut or made printable).
 *
 * Input: a message, header and body. The body is all that follows the header, whatever its length
 * field says, so that a decoder sees every length. */
#include "wire/message.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HELLO_BODY 65

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(bool is_true, const char *what)
{
    if (!is_true) {
        (void)fprintf(stderr, "failed: %s\n", what);
        abort();
    }
}

/* A failure fills the error, a success has nothing to say. */
static bool is_decoded(dd_status st, const dd_error *err)
{
    check(st == DD_OK || (st == DD_INVALID && err->status == st && err->text[0] != '\0'),
          "a refusal says what is wrong");
    for (const char *at = err->text; st != DD_OK && *at != '\0'; at++) {
        check(*at >= 0x20 && *at < 0x7F, "the text is printable");
    }
    return st == DD_OK;
}

/* An encoded message is the header and exactly the first `len` bytes of the input's body. */
static void check_encoded(const uint8_t *message, size_t n, enum ddi_message_type type,
                          const uint8_t *body, size_t len)
{
    struct ddi_header header;

    check(n == DDI_HEADER + len, "encoded length");
    check(ddi_decode_header(message, DDI_MAX_BODY, &header, NULL) == DD_OK, "encoded header");
    check(header.type == type && header.body == len, "encoded header's fields");
    check(memcmp(message + DDI_HEADER, body, len) == 0, "encoded body");
}

static void try_header(const uint8_t *in)
{
    struct ddi_header header;
    uint8_t out[DDI_HEADER];
    dd_error err = {0};

    if (is_decoded(ddi_decode_header(in, DDI_MAX_BODY, &header, &err), &err)) {
        ddi_encode_header(out, &header);
        check(memcmp(in, out, DDI_HEADER) == 0, "encoded header's bytes");
    }
}

static void try_hello(enum ddi_message_type type, const uint8_t *body, size_t len)
{
    struct ddi_hello hello;
    uint8_t out[DDI_HEADER + HELLO_BODY];
    dd_error err = {0};

    if (is_decoded(ddi_decode_hello(body, len, &hello, &err), &err)) {
        check_encoded(out, ddi_encode_hello(out, sizeof(out), type, &hello), type, body,
                      HELLO_BODY);
    }
}

static void try_refusal(enum ddi_message_type type, const uint8_t *body, size_t len)
{
    struct ddi_refusal refusal;
    struct ddi_refusal again;
    uint8_t out[DDI_HEADER + DDI_MAX_GREETING];
    dd_error err = {0};
    size_t n;

    if (is_decoded(ddi_decode_refusal(body, len, &refusal, &err), &err)) {
        check(strlen(refusal.text) <= DDI_MAX_TEXT, "length of the text");
        n = ddi_encode_refusal(out, sizeof(out), type, 1, refusal.status, refusal.text);
        check(ddi_decode_refusal(out + DDI_HEADER, n - DDI_HEADER, &again, NULL) == DD_OK &&
                  again.status == refusal.status && strcmp(again.text, refusal.text) == 0,
              "refusal comes back");
    }
}

static void try_attach(const uint8_t *body, size_t len)
{
    struct ddi_attach attach;
    uint8_t out[128];
    dd_error err = {0};

    if (is_decoded(ddi_decode_attach(body, len, &attach, &err), &err)) {
        check_encoded(out, ddi_encode_attach(out, sizeof(out), &attach), DDI_ATTACH, body, len);
    }
}

static void try_u32(enum ddi_message_type type, const uint8_t *body, size_t len)
{
    uint32_t value;
    uint8_t out[128];
    dd_error err = {0};

    if (is_decoded(ddi_decode_u32(body, len, &value, &err), &err)) {
        check_encoded(out, ddi_encode_u32(out, sizeof(out), type, 2, value), type, body, len);
    }
}

static void try_data(const uint8_t *body, size_t len)
{
    struct ddi_data decoded;
    uint8_t out[128];
    dd_error err = {0};

    if (is_decoded(ddi_decode_data(body, len, &decoded, &err), &err)) {
        check_encoded(out, ddi_encode_data(out, sizeof(out), 3, &decoded), DDI_DATA, body, len);
    }
}

static void try_confirm(const uint8_t *body, size_t len)
{
    struct ddi_confirm confirm;
    uint8_t out[DDI_HEADER + DDI_MAX_GREETING];
    dd_error err = {0};

    if (is_decoded(ddi_decode_confirm(body, len, &confirm, &err), &err)) {
        check_encoded(out, ddi_encode_confirm(out, sizeof(out), &confirm), DDI_CONFIRM, body, len);
    }
}

static void try_pull(const uint8_t *body, size_t len)
{
    struct ddi_pull pull;
    uint64_t *blocks = malloc(len / 4 * sizeof(*blocks) + 1);
    uint8_t *out = malloc(DDI_HEADER + len);
    dd_error err = {0};

    check(blocks != NULL && out != NULL, "memory");
    if (is_decoded(ddi_decode_pull(body, len, blocks, &pull, &err), &err)) {
        check(pull.blocks == blocks, "blocks are where they were wanted");
        check(ddi_pull_size(&pull) == DDI_HEADER + len, "size of the request");
        check_encoded(out, ddi_encode_pull(out, DDI_HEADER + len, 4, &pull), DDI_PULL, body, len);
    }
    free(blocks);
    free(out);
}

static void try_body(uint16_t type, const uint8_t *body, size_t len)
{
    switch (type) {
    case DDI_HELLO:
    case DDI_WELCOME:
        try_hello((enum ddi_message_type)type, body, len);
        break;
    case DDI_REFUSE:
    case DDI_FAIL:
        try_refusal((enum ddi_message_type)type, body, len);
        break;
    case DDI_ATTACH:
        try_attach(body, len);
        break;
    case DDI_ATTACHED:
    case DDI_END:
    case DDI_DIAL:
        try_u32((enum ddi_message_type)type, body, len);
        break;
    case DDI_PULL:
        try_pull(body, len);
        break;
    case DDI_DATA:
        try_data(body, len);
        break;
    case DDI_CONFIRM:
        try_confirm(body, len);
        break;
    default:
        break;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *body;
    size_t len;

    if (size < DDI_HEADER || size > DDI_HEADER + DDI_MAX_BODY) {
        return 0;
    }
    try_header(data);
    /* Memory of exactly this length: a read past it is caught. */
    len = size - DDI_HEADER;
    body = malloc(len > 0 ? len : 1);
    check(body != NULL, "memory");
    (void)memcpy(body, data + DDI_HEADER, len);
    try_body((uint16_t)(data[4] | data[5] << 8), body, len);
    free(body);
    return 0;
}

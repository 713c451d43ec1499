/* Messages between engines: values <-> bytes. Pure; any thread. Layouts: docs/protocol.md. */
#include "wire/message.h"

#include "base/bytes.h"
#include "base/num.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define GREETING_VERSION 1 /* header version of HELLO, WELCOME and REFUSE, always */
#define FIELD_REQUIRED 0x8000
#define FLAG_KEEP_KEY 1
#define FLAG_CONFIRM 1
#define LAST_ROLE DD_ROLE_MIX
#define LAST_KEY_KIND DD_KEY_BLOCKS
#define PULL_FIXED 88 /* bytes of a PULL body before its lists */
#define SHOWN_BYTES 4
#define SHOWN_TEXT 24 /* "47 45 54 20 'GET '" */

_Static_assert(PULL_FIXED + DDI_MAX_STREAMS * 4 + DDI_MAX_CONFIRMS * 8 <= 4096,
               "a PULL fits into DDI_MAX_BODY with the longest lists");

static char printable(uint8_t byte)
{
    return byte >= 0x20 && byte < 0x7F ? (char)byte : '?';
}

/* Show the first bytes of what a stranger sent. */
static const char *show_bytes(char text[SHOWN_TEXT], const uint8_t bytes[SHOWN_BYTES])
{
    (void)snprintf(text, SHOWN_TEXT, "%02x %02x %02x %02x '%c%c%c%c'", bytes[0], bytes[1], bytes[2],
                   bytes[3], printable(bytes[0]), printable(bytes[1]), printable(bytes[2]),
                   printable(bytes[3]));
    return text;
}

/* Header. */

static bool has_empty_body(uint16_t type)
{
    return type == DDI_READY || type == DDI_PING || type == DDI_PONG || type == DDI_BYE ||
           type == DDI_BYE_ACK;
}

static bool is_greeting(uint16_t type)
{
    return type == DDI_HELLO || type == DDI_WELCOME || type == DDI_REFUSE;
}

void ddi_encode_header(uint8_t out[DDI_HEADER], const struct ddi_header *header)
{
    struct ddi_writer w = ddi_writer_init(out, DDI_HEADER);

    ddi_write_u32(&w, header->body);
    ddi_write_u16(&w, header->type);
    ddi_write_u8(&w, header->version);
    ddi_write_u8(&w, 0);
    ddi_write_u64(&w, header->id);
}

static uint32_t longest_body(uint16_t type)
{
    if (has_empty_body(type)) {
        return 0;
    }
    return type == DDI_PULL ? DDI_MAX_BODY : DDI_MAX_GREETING;
}

dd_status ddi_decode_header(const uint8_t in[DDI_HEADER], uint32_t limit, struct ddi_header *out,
                            dd_error *err)
{
    struct ddi_reader r = ddi_reader_init(in, DDI_HEADER);
    struct ddi_header header;
    uint8_t first = DDI_PROTOCOL_MIN;
    uint8_t last = DDI_PROTOCOL_MAX;
    char shown[SHOWN_TEXT];
    uint32_t longest;
    uint8_t zero;

    header.body = ddi_read_u32(&r);
    header.type = ddi_read_u16(&r);
    header.version = ddi_read_u8(&r);
    zero = ddi_read_u8(&r);
    header.id = ddi_read_u64(&r);
    if (header.type < DDI_HELLO || header.type > DDI_DIAL) {
        return ddi_fail(err, DD_INVALID, "message header: type %u is unknown, found %s",
                        header.type, show_bytes(shown, in));
    }
    if (is_greeting(header.type)) {
        first = last = GREETING_VERSION;
    }
    if (header.version < first || header.version > last) {
        return ddi_fail(err, DD_INVALID,
                        "message header: version is %u, expected %u to %u (type %u)",
                        header.version, first, last, header.type);
    }
    if (zero != 0) {
        return ddi_fail(err, DD_INVALID,
                        "message header: reserved byte is %u, expected 0 (type %u)", zero,
                        header.type);
    }
    longest = (uint32_t)ddi_min_u64(limit, longest_body(header.type));
    if (header.body > longest) {
        return ddi_fail(err, DD_INVALID,
                        "message header: body of %" PRIu32 " bytes, at most %" PRIu32
                        " (type %u), found %s",
                        header.body, longest, header.type, show_bytes(shown, in));
    }
    *out = header;
    return DD_OK;
}

/* Shared by all messages. */

/* Begin a message: room for the header, filled in by end_message. */
static struct ddi_writer begin_message(uint8_t *out, size_t capacity)
{
    static const uint8_t no_header[DDI_HEADER];
    struct ddi_writer w = ddi_writer_init(out, capacity);

    ddi_write_bytes(&w, no_header, sizeof(no_header));
    return w;
}

static size_t end_message(uint8_t *out, const struct ddi_writer *w, enum ddi_message_type type,
                          uint64_t id)
{
    struct ddi_header header = {.type = (uint16_t)type, .id = id};

    if (w->bad) {
        return 0;
    }
    header.body = (uint32_t)(w->len - DDI_HEADER);
    /* Equal today only: NOLINTNEXTLINE(bugprone-branch-clone) */
    header.version = is_greeting(header.type) ? GREETING_VERSION : DDI_PROTOCOL_MAX;
    ddi_encode_header(out, &header);
    return w->len;
}

/* A body must end where its last field ends. */
static dd_status check_end(const struct ddi_reader *r, const char *message, size_t len,
                           dd_error *err)
{
    if (r->bad) {
        return ddi_fail(err, DD_INVALID, "%s: body of %zu bytes is too short", message, len);
    }
    if (r->left > 0) {
        return ddi_fail(err, DD_INVALID, "%s: body of %zu bytes has %zu too many", message, len,
                        r->left);
    }
    return DD_OK;
}

/* HELLO, WELCOME. */

size_t ddi_encode_hello(uint8_t *out, size_t capacity, enum ddi_message_type type,
                        const struct ddi_hello *hello)
{
    struct ddi_writer w = begin_message(out, capacity);

    ddi_write_u32(&w, DDI_MAGIC);
    ddi_write_u16(&w, hello->min_version);
    ddi_write_u16(&w, hello->max_version);
    ddi_write_u64(&w, hello->features);
    ddi_write_bytes(&w, hello->generation, DDI_GENERATION);
    ddi_write_u64(&w, hello->cluster_id);
    ddi_write_u64(&w, hello->expected_id);
    ddi_write_u8(&w, hello->role);
    ddi_write_bytes(&w, hello->token, DDI_TOKEN);
    return end_message(out, &w, type, 0);
}

/* Walk over the tagged fields behind the fixed ones. No field is defined yet: optional ones are
 * skipped, required ones are refused. */
static dd_status read_fields(struct ddi_reader *r, dd_error *err)
{
    while (r->left > 0) {
        uint16_t tag = ddi_read_u16(r);
        uint16_t len = ddi_read_u16(r);

        (void)ddi_read_bytes(r, len);
        if (r->bad) {
            return ddi_fail(err, DD_INVALID, "HELLO/WELCOME: field 0x%04x is cut off", tag);
        }
        if ((tag & FIELD_REQUIRED) != 0) {
            return ddi_fail(err, DD_INVALID,
                            "HELLO/WELCOME: field 0x%04x is required by the peer and unknown here",
                            tag);
        }
    }
    return DD_OK;
}

static void read_array(struct ddi_reader *r, uint8_t *out, size_t len)
{
    const uint8_t *bytes = ddi_read_bytes(r, len);

    if (bytes != NULL) {
        (void)memcpy(out, bytes, len);
    }
}

dd_status ddi_decode_hello(const uint8_t *body, size_t len, struct ddi_hello *out, dd_error *err)
{
    struct ddi_reader r = ddi_reader_init(body, len);
    struct ddi_hello hello = {0};
    uint32_t magic = ddi_read_u32(&r);
    char shown[SHOWN_TEXT];
    dd_status st;

    if (!r.bad && magic != DDI_MAGIC) {
        return ddi_fail(err, DD_INVALID,
                        "HELLO/WELCOME: magic: expected 44 44 53 54 'DDST', found %s",
                        show_bytes(shown, body));
    }
    hello.min_version = ddi_read_u16(&r);
    hello.max_version = ddi_read_u16(&r);
    hello.features = ddi_read_u64(&r);
    read_array(&r, hello.generation, DDI_GENERATION);
    hello.cluster_id = ddi_read_u64(&r);
    hello.expected_id = ddi_read_u64(&r);
    hello.role = ddi_read_u8(&r);
    read_array(&r, hello.token, DDI_TOKEN);
    if (r.bad) {
        return ddi_fail(err, DD_INVALID, "HELLO/WELCOME: body of %zu bytes is too short", len);
    }
    if (hello.min_version == 0 || hello.min_version > hello.max_version) {
        return ddi_fail(err, DD_INVALID, "HELLO/WELCOME: version range %u to %u is none",
                        hello.min_version, hello.max_version);
    }
    if (hello.role < DD_ROLE_PROMPT || hello.role > LAST_ROLE) {
        return ddi_fail(err, DD_INVALID, "HELLO/WELCOME: role is %u, allowed are %d to %d",
                        hello.role, DD_ROLE_PROMPT, LAST_ROLE);
    }
    st = read_fields(&r, err);
    if (st == DD_OK) {
        *out = hello;
    }
    return st;
}

/* READY, PING, PONG, BYE, BYE_ACK. */

size_t ddi_encode_empty(uint8_t *out, size_t capacity, enum ddi_message_type type, uint64_t id)
{
    struct ddi_writer w = begin_message(out, capacity);

    return end_message(out, &w, type, id);
}

/* REFUSE, FAIL. */

size_t ddi_encode_refusal(uint8_t *out, size_t capacity, enum ddi_message_type type, uint64_t id,
                          dd_status status, const char *text)
{
    struct ddi_writer w = begin_message(out, capacity);
    size_t len = strnlen(text, DDI_MAX_TEXT);

    ddi_write_u32(&w, status);
    ddi_write_u16(&w, (uint16_t)len);
    ddi_write_bytes(&w, text, len);
    return end_message(out, &w, type, id);
}

dd_status ddi_decode_refusal(const uint8_t *body, size_t len, struct ddi_refusal *out,
                             dd_error *err)
{
    struct ddi_reader r = ddi_reader_init(body, len);
    dd_status status = ddi_read_u32(&r);
    size_t text_len = ddi_read_u16(&r);
    const uint8_t *text = ddi_read_bytes(&r, text_len);
    dd_status st = check_end(&r, "REFUSE/FAIL", len, err);

    if (st != DD_OK) {
        return st;
    }
    if (status == DD_OK) {
        return ddi_fail(err, DD_INVALID, "REFUSE/FAIL: status is 0, a failure is needed");
    }
    /* Internal statuses mean something to the caller: a peer cannot say them. */
    out->status = status == DDI_AGAIN || status == DDI_UNSUPPORTED ? DD_FAILED : status;
    if (text_len > DDI_MAX_TEXT) {
        text_len = DDI_MAX_TEXT;
    }
    for (size_t i = 0; i < text_len; i++) {
        out->text[i] = printable(text[i]);
    }
    out->text[text_len] = '\0';
    return DD_OK;
}

/* ATTACH. */

size_t ddi_encode_attach(uint8_t *out, size_t capacity, const struct ddi_attach *attach)
{
    struct ddi_writer w = begin_message(out, capacity);

    ddi_write_u16(&w, attach->version);
    ddi_write_bytes(&w, attach->token, DDI_TOKEN);
    ddi_write_u8(&w, attach->user);
    return end_message(out, &w, DDI_ATTACH, 0);
}

dd_status ddi_decode_attach(const uint8_t *body, size_t len, struct ddi_attach *out, dd_error *err)
{
    struct ddi_reader r = ddi_reader_init(body, len);
    struct ddi_attach attach = {0};
    dd_status st;

    attach.version = ddi_read_u16(&r);
    read_array(&r, attach.token, DDI_TOKEN);
    attach.user = ddi_read_u8(&r);
    st = check_end(&r, "ATTACH", len, err);
    if (st != DD_OK) {
        return st;
    }
    if (attach.version < DDI_PROTOCOL_MIN || attach.version > DDI_PROTOCOL_MAX) {
        return ddi_fail(err, DD_INVALID, "ATTACH: version is %u, expected %d to %d", attach.version,
                        DDI_PROTOCOL_MIN, DDI_PROTOCOL_MAX);
    }
    if (attach.user > 1) {
        return ddi_fail(err, DD_INVALID, "ATTACH: user is %u, allowed are 0 and 1", attach.user);
    }
    *out = attach;
    return DD_OK;
}

/* ATTACHED, END, DIAL. */

size_t ddi_encode_u32(uint8_t *out, size_t capacity, enum ddi_message_type type, uint64_t id,
                      uint32_t value)
{
    struct ddi_writer w = begin_message(out, capacity);

    ddi_write_u32(&w, value);
    return end_message(out, &w, type, id);
}

dd_status ddi_decode_u32(const uint8_t *body, size_t len, uint32_t *out, dd_error *err)
{
    struct ddi_reader r = ddi_reader_init(body, len);
    uint32_t value = ddi_read_u32(&r);
    dd_status st = check_end(&r, "ATTACHED/END/DIAL", len, err);

    if (st == DD_OK) {
        *out = value;
    }
    return st;
}

/* DATA. */

size_t ddi_encode_data(uint8_t *out, size_t capacity, uint64_t id, const struct ddi_data *data)
{
    struct ddi_writer w = begin_message(out, capacity);

    ddi_write_u64(&w, data->bytes);
    ddi_write_u64(&w, data->first);
    ddi_write_u64(&w, data->len);
    ddi_write_u8(&w, data->confirm ? FLAG_CONFIRM : 0);
    return end_message(out, &w, DDI_DATA, id);
}

dd_status ddi_decode_data(const uint8_t *body, size_t len, struct ddi_data *out, dd_error *err)
{
    struct ddi_reader r = ddi_reader_init(body, len);
    struct ddi_data data;
    uint64_t end;
    uint8_t flags;
    dd_status st;

    data.bytes = ddi_read_u64(&r);
    data.first = ddi_read_u64(&r);
    data.len = ddi_read_u64(&r);
    flags = ddi_read_u8(&r);
    data.confirm = (flags & FLAG_CONFIRM) != 0;
    st = check_end(&r, "DATA", len, err);
    if (st != DD_OK) {
        return st;
    }
    if ((flags & ~FLAG_CONFIRM) != 0) {
        return ddi_fail(err, DD_INVALID, "DATA: flags are 0x%02x, known are 0x01", flags);
    }
    if (!ddi_add_u64(data.first, data.len, &end)) {
        return ddi_fail(err, DD_INVALID,
                        "DATA: %" PRIu64 " bytes from %" PRIu64 " do not fit into 64 bits",
                        data.len, data.first);
    }
    *out = data;
    return DD_OK;
}

/* CONFIRM. */

size_t ddi_encode_confirm(uint8_t *out, size_t capacity, const struct ddi_confirm *confirm)
{
    struct ddi_writer w = begin_message(out, capacity);

    if (confirm->count > DDI_MAX_CONFIRMS) {
        return 0;
    }
    ddi_write_u16(&w, confirm->count);
    for (uint16_t i = 0; i < confirm->count; i++) {
        ddi_write_u64(&w, confirm->ids[i]);
    }
    return end_message(out, &w, DDI_CONFIRM, 0);
}

dd_status ddi_decode_confirm(const uint8_t *body, size_t len, struct ddi_confirm *out,
                             dd_error *err)
{
    struct ddi_reader r = ddi_reader_init(body, len);
    struct ddi_confirm confirm = {.count = ddi_read_u16(&r)};
    dd_status st;

    if (confirm.count > DDI_MAX_CONFIRMS) {
        return ddi_fail(err, DD_INVALID, "CONFIRM: count is %u, at most %d", confirm.count,
                        DDI_MAX_CONFIRMS);
    }
    for (uint16_t i = 0; i < confirm.count; i++) {
        confirm.ids[i] = ddi_read_u64(&r);
    }
    st = check_end(&r, "CONFIRM", len, err);
    if (st == DD_OK) {
        *out = confirm;
    }
    return st;
}

/* PULL. */

size_t ddi_pull_size(const struct ddi_pull *pull)
{
    return DDI_HEADER + PULL_FIXED + (size_t)pull->stream_count * 4 +
           (size_t)pull->confirm_count * 8 + (size_t)pull->block_count * 4;
}

size_t ddi_encode_pull(uint8_t *out, size_t capacity, uint64_t id, const struct ddi_pull *pull)
{
    struct ddi_writer w = begin_message(out, capacity);

    if (pull->stream_count > DDI_MAX_STREAMS || pull->confirm_count > DDI_MAX_CONFIRMS ||
        pull->block_count > DDI_MAX_BLOCKS ||
        (pull->mode != DDI_PULL_BLOCKS && pull->block_count > 0)) {
        return 0;
    }
    ddi_write_u32(&w, pull->left_ms);
    ddi_write_u8(&w, pull->mode);
    ddi_write_u8(&w, pull->keep_key ? FLAG_KEEP_KEY : 0);
    ddi_write_u8(&w, pull->key_kind);
    ddi_write_u8(&w, 0);
    ddi_write_u64(&w, pull->key_id);
    ddi_write_u64(&w, pull->model_id);
    ddi_write_u64(&w, (uint64_t)pull->cache);
    ddi_write_u32(&w, pull->batch);
    ddi_write_u32(&w, pull->tensors_per_layer);
    ddi_write_u32(&w, pull->first_layer);
    ddi_write_u32(&w, pull->layer_count);
    ddi_write_u32(&w, pull->want_tensors);
    ddi_write_u32(&w, pull->piece_count);
    ddi_write_u64(&w, pull->offset);
    ddi_write_u64(&w, pull->bytes);
    ddi_write_u64(&w, pull->block_bytes);
    ddi_write_u16(&w, pull->stream_count);
    ddi_write_u16(&w, pull->confirm_count);
    ddi_write_u32(&w, pull->block_count);
    for (uint16_t i = 0; i < pull->stream_count; i++) {
        ddi_write_u32(&w, pull->streams[i]);
    }
    for (uint16_t i = 0; i < pull->confirm_count; i++) {
        ddi_write_u64(&w, pull->confirms[i]);
    }
    for (uint32_t i = 0; i < pull->block_count && !w.bad; i++) {
        w.bad = pull->blocks[i] > UINT32_MAX;
        ddi_write_u32(&w, (uint32_t)pull->blocks[i]);
    }
    return end_message(out, &w, DDI_PULL, id);
}

static void read_pull(struct ddi_reader *r, struct ddi_pull *out, uint8_t *flags, uint8_t *zero)
{
    out->left_ms = ddi_read_u32(r);
    out->mode = ddi_read_u8(r);
    *flags = ddi_read_u8(r);
    out->keep_key = (*flags & FLAG_KEEP_KEY) != 0;
    out->key_kind = ddi_read_u8(r);
    *zero = ddi_read_u8(r);
    out->key_id = ddi_read_u64(r);
    out->model_id = ddi_read_u64(r);
    out->cache = (int64_t)ddi_read_u64(r);
    out->batch = ddi_read_u32(r);
    out->tensors_per_layer = ddi_read_u32(r);
    out->first_layer = ddi_read_u32(r);
    out->layer_count = ddi_read_u32(r);
    out->want_tensors = ddi_read_u32(r);
    out->piece_count = ddi_read_u32(r);
    out->offset = ddi_read_u64(r);
    out->bytes = ddi_read_u64(r);
    out->block_bytes = ddi_read_u64(r);
    out->stream_count = ddi_read_u16(r);
    out->confirm_count = ddi_read_u16(r);
    out->block_count = ddi_read_u32(r);
}

/* Refuse what no encoder writes. What a caller can get wrong is the owner's to refuse, in words. */
static dd_status check_pull(const struct ddi_pull *pull, uint8_t flags, uint8_t zero, dd_error *err)
{
    if (pull->mode > DDI_PULL_PIECES) {
        return ddi_fail(err, DD_INVALID, "PULL: mode %u is unknown", pull->mode);
    }
    if ((flags & ~FLAG_KEEP_KEY) != 0) {
        return ddi_fail(err, DD_INVALID, "PULL: flags are 0x%02x, known are 0x01", flags);
    }
    if (pull->key_kind > LAST_KEY_KIND) {
        return ddi_fail(err, DD_INVALID, "PULL: key kind %u is unknown", pull->key_kind);
    }
    if (zero != 0) {
        return ddi_fail(err, DD_INVALID, "PULL: reserved byte is %u, expected 0", zero);
    }
    if (pull->stream_count > DDI_MAX_STREAMS) {
        return ddi_fail(err, DD_INVALID, "PULL: stream count is %u, at most %d", pull->stream_count,
                        DDI_MAX_STREAMS);
    }
    if (pull->confirm_count > DDI_MAX_CONFIRMS) {
        return ddi_fail(err, DD_INVALID, "PULL: confirm count is %u, at most %d",
                        pull->confirm_count, DDI_MAX_CONFIRMS);
    }
    if (pull->block_count > DDI_MAX_BLOCKS ||
        (pull->mode != DDI_PULL_BLOCKS && pull->block_count > 0)) {
        return ddi_fail(err, DD_INVALID, "PULL: block count is %" PRIu32 " in mode %u, at most %u",
                        pull->block_count, pull->mode,
                        pull->mode == DDI_PULL_BLOCKS ? DDI_MAX_BLOCKS : 0);
    }
    return DD_OK;
}

dd_status ddi_decode_pull(const uint8_t *body, size_t len, uint64_t *blocks, struct ddi_pull *out,
                          dd_error *err)
{
    struct ddi_reader r = ddi_reader_init(body, len);
    struct ddi_pull pull = {0};
    uint8_t flags;
    uint8_t zero;
    dd_status st;

    read_pull(&r, &pull, &flags, &zero);
    if (r.bad) {
        return ddi_fail(err, DD_INVALID, "PULL: body of %zu bytes is too short", len);
    }
    st = check_pull(&pull, flags, zero, err);
    if (st != DD_OK) {
        return st;
    }
    if (len != ddi_pull_size(&pull) - DDI_HEADER) {
        return ddi_fail(err, DD_INVALID, "PULL: body of %zu bytes, its counts need %zu", len,
                        ddi_pull_size(&pull) - DDI_HEADER);
    }
    for (uint16_t i = 0; i < pull.stream_count; i++) {
        pull.streams[i] = ddi_read_u32(&r);
    }
    for (uint16_t i = 0; i < pull.confirm_count; i++) {
        pull.confirms[i] = ddi_read_u64(&r);
    }
    for (uint32_t i = 0; i < pull.block_count; i++) {
        blocks[i] = ddi_read_u32(&r);
    }
    pull.blocks = blocks;
    *out = pull;
    return DD_OK;
}

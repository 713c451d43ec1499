/* The codec: exact layouts, what comes back, and what is refused in which words. */
#include "wire/message.h"

#include "check.h"

#define ROOM (DDI_HEADER + DDI_MAX_GREETING)
#define HELLO_BODY 65

static uint8_t message[ROOM];
static const uint8_t *const body = message + DDI_HEADER;

static struct ddi_header header_of(const uint8_t *bytes)
{
    struct ddi_header header = {0};

    EXPECT_OK(ddi_decode_header(bytes, DDI_MAX_BODY, &header, NULL));
    return header;
}

static void expect_bad_header(const uint8_t bytes[DDI_HEADER], const char *part)
{
    struct ddi_header header = {.type = 77};
    dd_error err = {0};

    EXPECT_STATUS(ddi_decode_header(bytes, DDI_MAX_BODY, &header, &err), DD_INVALID);
    EXPECT_CONTAINS(err.text, part);
    EXPECT_EQ(header.type, 77);
}

static struct ddi_hello a_hello(void)
{
    return (struct ddi_hello){.min_version = 1,
                              .max_version = 3,
                              .features = UINT64_C(1) << 63,
                              .generation = "generation-of16",
                              .cluster_id = 7,
                              .expected_id = UINT64_MAX,
                              .role = DD_ROLE_MIX,
                              .token = "token--of----16"};
}

static struct ddi_pull a_pull(const uint64_t *blocks, uint32_t n)
{
    return (struct ddi_pull){.left_ms = 900,
                             .mode = DDI_PULL_BLOCKS,
                             .keep_key = true,
                             .key_kind = DD_KEY_BLOCKS,
                             .key_id = 11,
                             .model_id = UINT64_MAX,
                             .cache = -5,
                             .batch = 3,
                             .tensors_per_layer = 2,
                             .first_layer = 8,
                             .layer_count = 4,
                             .want_tensors = 8,
                             .offset = UINT64_C(1) << 40,
                             .bytes = 12345,
                             .block_bytes = 16384,
                             .piece_count = 9,
                             .stream_count = 2,
                             .streams = {4, UINT32_MAX},
                             .confirm_count = 1,
                             .confirms = {UINT64_C(1) << 50},
                             .block_count = n,
                             .blocks = blocks};
}

TEST(header_has_its_layout)
{
    static const uint8_t wanted[DDI_HEADER] = {0x04, 0x03, 0, 0, 11, 0, 1, 0,
                                               8,    7,    6, 5, 4,  3, 2, 1};
    struct ddi_header header = {
        .body = 0x0304, .type = DDI_PULL, .version = 1, .id = UINT64_C(0x0102030405060708)};
    uint8_t bytes[DDI_HEADER];

    ddi_encode_header(bytes, &header);
    EXPECT_TRUE(memcmp(bytes, wanted, sizeof(wanted)) == 0);
    header = header_of(bytes);
    EXPECT_EQ(header.body, 0x0304);
    EXPECT_EQ(header.type, DDI_PULL);
    EXPECT_EQ(header.version, 1);
    EXPECT_EQ(header.id, UINT64_C(0x0102030405060708));
}

TEST(strangers_are_shown_by_their_first_bytes)
{
    static const uint8_t tls[DDI_HEADER] = {0x16, 3, 1, 2, 0, 1, 0, 1, 0xFC, 3, 3};

    expect_bad_header((const uint8_t *)"GET / HTTP/1.1\r\n", "found 47 45 54 20 'GET '");
    expect_bad_header(tls, "found 16 03 01 02 '");
}

TEST(bad_headers_are_refused_with_the_field)
{
    struct ddi_header header = {.body = 4, .type = DDI_DIAL, .version = 1};
    struct ddi_header out;
    uint8_t bytes[DDI_HEADER];
    dd_error err = {0};

    header.type = 0;
    ddi_encode_header(bytes, &header);
    expect_bad_header(bytes, "type 0 is unknown");
    header.type = DDI_DIAL + 1;
    ddi_encode_header(bytes, &header);
    expect_bad_header(bytes, "type 17 is unknown");
    header.type = DDI_DIAL;
    header.version = DDI_PROTOCOL_MAX + 1;
    ddi_encode_header(bytes, &header);
    expect_bad_header(bytes, "version is 2, expected 1 to 1");
    header.version = 1;
    ddi_encode_header(bytes, &header);
    bytes[7] = 9;
    expect_bad_header(bytes, "reserved byte is 9");
    header.body = 100;
    ddi_encode_header(bytes, &header);
    EXPECT_STATUS(ddi_decode_header(bytes, 99, &out, &err), DD_INVALID);
    EXPECT_CONTAINS(err.text, "body of 100 bytes, at most 99");
    EXPECT_OK(ddi_decode_header(bytes, 100, &out, &err));
}

TEST(only_a_request_may_be_long)
{
    struct ddi_header header = {.body = DDI_MAX_GREETING + 1, .type = DDI_PULL, .version = 1};
    uint8_t bytes[DDI_HEADER];

    ddi_encode_header(bytes, &header);
    EXPECT_EQ(header_of(bytes).body, DDI_MAX_GREETING + 1);
    header.body = DDI_MAX_BODY + 1;
    ddi_encode_header(bytes, &header);
    expect_bad_header(bytes, "body of 16781313 bytes, at most 16781312");
    header.type = DDI_CONFIRM;
    header.body = DDI_MAX_GREETING + 1;
    ddi_encode_header(bytes, &header);
    expect_bad_header(bytes, "body of 4097 bytes, at most 4096");
    header.type = DDI_PING;
    header.body = 1;
    ddi_encode_header(bytes, &header);
    expect_bad_header(bytes, "body of 1 bytes, at most 0");
}

TEST(hello_comes_back_whole)
{
    struct ddi_hello hello = a_hello();
    struct ddi_hello back = {0};

    EXPECT_EQ(ddi_encode_hello(message, sizeof(message), DDI_WELCOME, &hello),
              DDI_HEADER + HELLO_BODY);
    EXPECT_EQ(header_of(message).type, DDI_WELCOME);
    EXPECT_EQ(header_of(message).body, HELLO_BODY);
    EXPECT_TRUE(memcmp(body, "DDST", 4) == 0);
    REQUIRE_OK(ddi_decode_hello(body, HELLO_BODY, &back, NULL));
    EXPECT_EQ(back.min_version, 1);
    EXPECT_EQ(back.max_version, 3);
    EXPECT_EQ(back.features, UINT64_C(1) << 63);
    EXPECT_TRUE(memcmp(back.generation, hello.generation, DDI_GENERATION) == 0);
    EXPECT_EQ(back.cluster_id, 7);
    EXPECT_EQ(back.expected_id, UINT64_MAX);
    EXPECT_EQ(back.role, DD_ROLE_MIX);
    EXPECT_TRUE(memcmp(back.token, hello.token, DDI_TOKEN) == 0);
}

static void expect_bad_hello(size_t len, const char *part)
{
    struct ddi_hello hello = {.role = 99};
    dd_error err = {0};

    EXPECT_STATUS(ddi_decode_hello(body, len, &hello, &err), DD_INVALID);
    EXPECT_CONTAINS(err.text, part);
    EXPECT_EQ(hello.role, 99);
}

TEST(hello_is_refused_with_the_field)
{
    struct ddi_hello hello = a_hello();

    (void)ddi_encode_hello(message, sizeof(message), DDI_HELLO, &hello);
    for (size_t len = 0; len < HELLO_BODY; len++) {
        expect_bad_hello(len, "too short");
    }
    (void)memcpy(message + DDI_HEADER, "GET ", 4);
    expect_bad_hello(HELLO_BODY, "magic: expected 44 44 53 54 'DDST', found 47 45 54 20 'GET '");
    hello.min_version = 4;
    (void)ddi_encode_hello(message, sizeof(message), DDI_HELLO, &hello);
    expect_bad_hello(HELLO_BODY, "version range 4 to 3");
    hello.min_version = 0;
    (void)ddi_encode_hello(message, sizeof(message), DDI_HELLO, &hello);
    expect_bad_hello(HELLO_BODY, "version range 0 to 3");
    hello = a_hello();
    hello.role = 4;
    (void)ddi_encode_hello(message, sizeof(message), DDI_HELLO, &hello);
    expect_bad_hello(HELLO_BODY, "role is 4, allowed are 1 to 3");
}

TEST(unknown_optional_fields_are_skipped_and_required_ones_refused)
{
    static const uint8_t fields[] = {0x34, 0x12, 3, 0, 'a', 'b', 'c', 0x01, 0x80, 0, 0};
    struct ddi_hello hello = a_hello();
    struct ddi_hello back = {0};

    (void)ddi_encode_hello(message, sizeof(message), DDI_HELLO, &hello);
    (void)memcpy(message + DDI_HEADER + HELLO_BODY, fields, sizeof(fields));
    EXPECT_OK(ddi_decode_hello(body, HELLO_BODY + 7, &back, NULL));
    EXPECT_EQ(back.cluster_id, 7);
    expect_bad_hello(HELLO_BODY + 6, "field 0x1234 is cut off");
    expect_bad_hello(HELLO_BODY + 11, "field 0x8001 is required");
    expect_bad_hello(HELLO_BODY + 10, "field 0x8001 is cut off");
    expect_bad_hello(HELLO_BODY + 1, "cut off");
}

TEST(messages_without_fields_are_a_header)
{
    struct ddi_header header;

    EXPECT_EQ(ddi_encode_empty(message, DDI_HEADER, DDI_PING, 42), DDI_HEADER);
    header = header_of(message);
    EXPECT_EQ(header.type, DDI_PING);
    EXPECT_EQ(header.id, 42);
    EXPECT_EQ(header.body, 0);
}

TEST(text_of_a_peer_is_cut_and_made_printable)
{
    char text[2 * DDI_MAX_TEXT];
    struct ddi_refusal back;
    size_t n;

    n = ddi_encode_refusal(message, sizeof(message), DDI_FAIL, 9, DD_NO_CACHE,
                           "a\tb\x1b[31m\xc3\xa4 c");
    REQUIRE_OK(ddi_decode_refusal(body, n - DDI_HEADER, &back, NULL));
    EXPECT_EQ(back.status, DD_NO_CACHE);
    EXPECT_TRUE(strcmp(back.text, "a?b?[31m?? c") == 0);
    EXPECT_EQ(header_of(message).id, 9);

    (void)memset(text, 'x', sizeof(text));
    text[sizeof(text) - 1] = '\0';
    n = ddi_encode_refusal(message, sizeof(message), DDI_REFUSE, 0, DD_LINK_FAILED, text);
    EXPECT_EQ(n, DDI_HEADER + 6 + DDI_MAX_TEXT);
    /* A peer of our kind cuts; one that does not is cut here. */
    message[DDI_HEADER + 4] = (uint8_t)(DDI_MAX_TEXT + 50);
    message[DDI_HEADER + 5] = (uint8_t)((DDI_MAX_TEXT + 50) >> 8);
    (void)memset(message + n, 'y', 50);
    REQUIRE_OK(ddi_decode_refusal(body, n + 50 - DDI_HEADER, &back, NULL));
    EXPECT_EQ(strlen(back.text), DDI_MAX_TEXT);
    EXPECT_TRUE(strchr(back.text, 'y') == NULL);
}

TEST(refusals_are_refused_when_they_are_none)
{
    struct ddi_refusal back = {.status = 5};
    dd_error err = {0};
    size_t n = ddi_encode_refusal(message, sizeof(message), DDI_FAIL, 1, DD_OK, "text");

    EXPECT_STATUS(ddi_decode_refusal(body, n - DDI_HEADER, &back, &err), DD_INVALID);
    EXPECT_CONTAINS(err.text, "status is 0");
    EXPECT_STATUS(ddi_decode_refusal(body, n - DDI_HEADER - 1, &back, &err), DD_INVALID);
    EXPECT_CONTAINS(err.text, "too short");
    EXPECT_STATUS(ddi_decode_refusal(body, n - DDI_HEADER + 1, &back, &err), DD_INVALID);
    EXPECT_CONTAINS(err.text, "1 too many");
    EXPECT_EQ(back.status, 5);
}

TEST(internal_statuses_of_a_peer_become_failed)
{
    struct ddi_refusal back;
    size_t n = ddi_encode_refusal(message, sizeof(message), DDI_FAIL, 1, DDI_AGAIN, "");

    REQUIRE_OK(ddi_decode_refusal(body, n - DDI_HEADER, &back, NULL));
    EXPECT_EQ(back.status, DD_FAILED);
    EXPECT_EQ(back.text[0], '\0');
}

TEST(attach_comes_back_whole_or_is_refused)
{
    struct ddi_attach attach = {.version = 1, .token = "0123456789abcde", .user = 1};
    struct ddi_attach back = {0};
    dd_error err = {0};
    size_t n = ddi_encode_attach(message, sizeof(message), &attach) - DDI_HEADER;

    REQUIRE_OK(ddi_decode_attach(body, n, &back, NULL));
    EXPECT_EQ(back.version, 1);
    EXPECT_EQ(back.user, 1);
    EXPECT_TRUE(memcmp(back.token, attach.token, DDI_TOKEN) == 0);
    EXPECT_STATUS(ddi_decode_attach(body, n - 1, &back, &err), DD_INVALID);
    EXPECT_STATUS(ddi_decode_attach(body, n + 1, &back, &err), DD_INVALID);
    EXPECT_CONTAINS(err.text, "ATTACH: body of 20 bytes has 1 too many");
    message[DDI_HEADER + n - 1] = 2;
    EXPECT_STATUS(ddi_decode_attach(body, n, &back, &err), DD_INVALID);
    EXPECT_CONTAINS(err.text, "user is 2");
    message[DDI_HEADER] = 2;
    EXPECT_STATUS(ddi_decode_attach(body, n, &back, &err), DD_INVALID);
    EXPECT_CONTAINS(err.text, "version is 2");
}

TEST(numbers_come_back_whole)
{
    uint32_t back = 0;
    size_t n = ddi_encode_u32(message, sizeof(message), DDI_ATTACHED, 3, 0xA1B2C3D4);

    EXPECT_EQ(n, DDI_HEADER + 4);
    EXPECT_OK(ddi_decode_u32(body, 4, &back, NULL));
    EXPECT_EQ(back, 0xA1B2C3D4);
    EXPECT_STATUS(ddi_decode_u32(body, 3, &back, NULL), DD_INVALID);
    EXPECT_STATUS(ddi_decode_u32(body, 5, &back, NULL), DD_INVALID);
}

TEST(data_comes_back_whole_or_is_refused)
{
    struct ddi_data data = {.bytes = 10, .first = UINT64_MAX - 30, .len = 30, .confirm = true};
    struct ddi_data back = {0};
    dd_error err = {0};
    size_t n = ddi_encode_data(message, sizeof(message), 8, &data) - DDI_HEADER;

    REQUIRE_OK(ddi_decode_data(body, n, &back, NULL));
    EXPECT_EQ(back.bytes, 10);
    EXPECT_EQ(back.first, UINT64_MAX - 30);
    EXPECT_EQ(back.len, 30);
    EXPECT_TRUE(back.confirm);
    EXPECT_STATUS(ddi_decode_data(body, n - 1, &back, &err), DD_INVALID);
    EXPECT_STATUS(ddi_decode_data(body, n + 1, &back, &err), DD_INVALID);
    EXPECT_CONTAINS(err.text, "1 too many");
    message[DDI_HEADER + n - 1] = 3;
    EXPECT_STATUS(ddi_decode_data(body, n, &back, &err), DD_INVALID);
    EXPECT_CONTAINS(err.text, "flags are 0x03");
    data.len = 31;
    (void)ddi_encode_data(message, sizeof(message), 8, &data);
    EXPECT_STATUS(ddi_decode_data(body, n, &back, &err), DD_INVALID);
    EXPECT_CONTAINS(err.text, "64 bits");
}

TEST(confirmations_come_back_whole_or_are_refused)
{
    struct ddi_confirm confirm = {.count = DDI_MAX_CONFIRMS};
    struct ddi_confirm back = {.count = 77};
    dd_error err = {0};
    size_t n;

    for (uint16_t i = 0; i < confirm.count; i++) {
        confirm.ids[i] = UINT64_MAX - i;
    }
    n = ddi_encode_confirm(message, sizeof(message), &confirm) - DDI_HEADER;
    EXPECT_STATUS(ddi_decode_confirm(body, n - 1, &back, &err), DD_INVALID);
    EXPECT_EQ(back.count, 77);
    REQUIRE_OK(ddi_decode_confirm(body, n, &back, NULL));
    EXPECT_EQ(back.count, DDI_MAX_CONFIRMS);
    EXPECT_TRUE(memcmp(back.ids, confirm.ids, sizeof(back.ids)) == 0);
    message[DDI_HEADER]++;
    EXPECT_STATUS(ddi_decode_confirm(body, n + 8, &back, &err), DD_INVALID);
    EXPECT_CONTAINS(err.text, "count is 65, at most 64");
    confirm.count++;
    EXPECT_EQ(ddi_encode_confirm(message, sizeof(message), &confirm), 0);
}

TEST(pull_comes_back_whole)
{
    static const uint64_t list[] = {5, 0, UINT32_MAX};
    struct ddi_pull pull = a_pull(list, 3);
    struct ddi_pull back;
    uint64_t room[64];
    size_t n = ddi_encode_pull(message, sizeof(message), 77, &pull);

    EXPECT_EQ(n, ddi_pull_size(&pull));
    EXPECT_EQ(header_of(message).id, 77);
    REQUIRE_OK(ddi_decode_pull(body, n - DDI_HEADER, room, &back, NULL));
    EXPECT_TRUE(back.blocks == room);
    EXPECT_TRUE(memcmp(room, list, sizeof(list)) == 0);
    EXPECT_EQ(back.left_ms, 900);
    EXPECT_EQ(back.mode, DDI_PULL_BLOCKS);
    EXPECT_TRUE(back.keep_key);
    EXPECT_EQ(back.key_kind, DD_KEY_BLOCKS);
    EXPECT_EQ(back.key_id, 11);
    EXPECT_EQ(back.model_id, UINT64_MAX);
    EXPECT_EQ(back.cache, -5);
    EXPECT_EQ(back.batch, 3);
    EXPECT_EQ(back.tensors_per_layer, 2);
    EXPECT_EQ(back.first_layer, 8);
    EXPECT_EQ(back.layer_count, 4);
    EXPECT_EQ(back.want_tensors, 8);
    EXPECT_EQ(back.offset, UINT64_C(1) << 40);
    EXPECT_EQ(back.bytes, 12345);
    EXPECT_EQ(back.block_bytes, 16384);
    EXPECT_EQ(back.piece_count, 9);
    EXPECT_EQ(back.stream_count, 2);
    EXPECT_EQ(back.streams[1], UINT32_MAX);
    EXPECT_EQ(back.confirm_count, 1);
    EXPECT_EQ(back.confirms[0], UINT64_C(1) << 50);
}

static void expect_bad_pull(size_t len, const char *part)
{
    struct ddi_pull back = {.left_ms = 99};
    uint64_t room[64];
    dd_error err = {0};

    EXPECT_STATUS(ddi_decode_pull(body, len, room, &back, &err), DD_INVALID);
    EXPECT_CONTAINS(err.text, part);
    EXPECT_EQ(back.left_ms, 99);
}

/* Change one byte of the body, expect the words, change it back. */
static void expect_bad_byte(size_t len, size_t at, uint8_t value, const char *part)
{
    uint8_t before = message[DDI_HEADER + at];

    message[DDI_HEADER + at] = value;
    expect_bad_pull(len, part);
    message[DDI_HEADER + at] = before;
}

TEST(pull_is_refused_with_the_field)
{
    static const uint64_t list[] = {5, 0, 6};
    struct ddi_pull pull = a_pull(list, 3);
    size_t n = ddi_encode_pull(message, sizeof(message), 77, &pull) - DDI_HEADER;

    for (size_t len = 0; len < n; len++) {
        expect_bad_pull(len, "PULL: body of");
    }
    expect_bad_pull(n + 4, "its counts need 116");
    expect_bad_byte(n, 4, 3, "mode 3");
    expect_bad_byte(n, 4, DDI_PULL_SLICE, "block count is 3 in mode 0, at most 0");
    expect_bad_byte(n, 5, 0x81, "flags are 0x81");
    expect_bad_byte(n, 6, 4, "key kind 4");
    expect_bad_byte(n, 7, 1, "reserved byte");
    expect_bad_byte(n, 80, DDI_MAX_STREAMS + 1, "stream count is 65, at most 64");
    expect_bad_byte(n, 82, DDI_MAX_CONFIRMS + 1, "confirm count is 65, at most 64");
    expect_bad_byte(n, 84, 4, "its counts need 120");
    expect_bad_byte(n, 86, 0x41, "block count is 4259843 in mode 1, at most 4194304");
}

TEST(pull_that_no_message_can_carry_is_not_encoded)
{
    static const uint64_t list[] = {5, UINT64_C(1) << 32};
    struct ddi_pull pull = a_pull(list, 2);

    EXPECT_EQ(ddi_encode_pull(message, sizeof(message), 1, &pull), 0);
    pull = a_pull(list, 1);
    pull.mode = DDI_PULL_PIECES;
    EXPECT_EQ(ddi_encode_pull(message, sizeof(message), 1, &pull), 0);
    pull = a_pull(list, 1);
    pull.stream_count = DDI_MAX_STREAMS + 1;
    EXPECT_EQ(ddi_encode_pull(message, sizeof(message), 1, &pull), 0);
    pull = a_pull(list, 1);
    pull.confirm_count = DDI_MAX_CONFIRMS + 1;
    EXPECT_EQ(ddi_encode_pull(message, sizeof(message), 1, &pull), 0);
    pull = a_pull(list, DDI_MAX_BLOCKS + 1);
    EXPECT_EQ(ddi_encode_pull(message, sizeof(message), 1, &pull), 0);
}

TEST(longest_pull_fits_into_its_limit)
{
    uint64_t *list = calloc(DDI_MAX_BLOCKS, sizeof(*list));
    uint64_t *room = calloc(DDI_MAX_BLOCKS, sizeof(*room));
    uint8_t *bytes = malloc(DDI_HEADER + DDI_MAX_BODY);
    struct ddi_pull pull = a_pull(list, DDI_MAX_BLOCKS);
    struct ddi_pull back;
    size_t n;

    REQUIRE_TRUE(list != NULL && room != NULL && bytes != NULL);
    list[DDI_MAX_BLOCKS - 1] = 12345;
    pull.stream_count = DDI_MAX_STREAMS;
    pull.confirm_count = DDI_MAX_CONFIRMS;
    n = ddi_encode_pull(bytes, DDI_HEADER + DDI_MAX_BODY, 1, &pull);
    EXPECT_EQ(n, ddi_pull_size(&pull));
    EXPECT_EQ(header_of(bytes).body, n - DDI_HEADER);
    EXPECT_OK(ddi_decode_pull(bytes + DDI_HEADER, n - DDI_HEADER, room, &back, NULL));
    EXPECT_EQ(room[DDI_MAX_BLOCKS - 1], 12345);
    free(list);
    free(room);
    free(bytes);
}

TEST(encoders_need_exactly_their_room)
{
    static const uint64_t list[] = {1, 2};
    struct ddi_hello hello = a_hello();
    struct ddi_attach attach = {.version = 1};
    struct ddi_data data = {.bytes = 1};
    struct ddi_confirm confirm = {.count = 2};
    struct ddi_pull pull = a_pull(list, 2);
    uint8_t out[256];

    for (size_t room = 0; room < sizeof(out); room++) {
        size_t n[] = {ddi_encode_hello(out, room, DDI_HELLO, &hello),
                      ddi_encode_empty(out, room, DDI_BYE, 0),
                      ddi_encode_refusal(out, room, DDI_FAIL, 0, DD_FAILED, "why"),
                      ddi_encode_attach(out, room, &attach),
                      ddi_encode_u32(out, room, DDI_DIAL, 0, 1),
                      ddi_encode_data(out, room, 0, &data),
                      ddi_encode_confirm(out, room, &confirm),
                      ddi_encode_pull(out, room, 0, &pull)};
        size_t body_len[] = {HELLO_BODY, 0, 9, 19, 4, 25, 18, 88 + 8 + 8 + 8};

        for (size_t i = 0; i < sizeof(n) / sizeof(n[0]); i++) {
            EXPECT_EQ(n[i], room < DDI_HEADER + body_len[i] ? 0 : DDI_HEADER + body_len[i]);
        }
    }
}

CHECK_MAIN(RUN(header_has_its_layout); RUN(strangers_are_shown_by_their_first_bytes);
           RUN(bad_headers_are_refused_with_the_field); RUN(only_a_request_may_be_long);
           RUN(hello_comes_back_whole); RUN(hello_is_refused_with_the_field);
           RUN(unknown_optional_fields_are_skipped_and_required_ones_refused);
           RUN(messages_without_fields_are_a_header); RUN(text_of_a_peer_is_cut_and_made_printable);
           RUN(refusals_are_refused_when_they_are_none);
           RUN(internal_statuses_of_a_peer_become_failed);
           RUN(attach_comes_back_whole_or_is_refused); RUN(numbers_come_back_whole);
           RUN(data_comes_back_whole_or_is_refused);
           RUN(confirmations_come_back_whole_or_are_refused); RUN(pull_comes_back_whole);
           RUN(pull_is_refused_with_the_field); RUN(pull_that_no_message_can_carry_is_not_encoded);
           RUN(longest_pull_fits_into_its_limit); RUN(encoders_need_exactly_their_room);)

/* Messages between engines: values <-> bytes. Pure: no I/O, no lock, no clock. Kept in step with
 * docs/protocol.md.
 *
 * A message is a header of DDI_HEADER bytes and a body. All integers are little-endian. Decoders
 * take untrusted bytes: they check length before reading, refuse trailing bytes, and name the
 * field that is wrong. Text from a peer is cut and made printable. */
#ifndef DDI_MESSAGE_H
#define DDI_MESSAGE_H

#include "base/status.h"

#include <stdbool.h>

#define DDI_PROTOCOL_MIN 1
#define DDI_PROTOCOL_MAX 1
#define DDI_MAGIC UINT32_C(0x54534444) /* "DDST" */

#define DDI_HEADER 16
#define DDI_MAX_GREETING 4096                    /* body of a message before the link stands */
#define DDI_MAX_STREAMS 64                       /* data connections of one transfer */
#define DDI_MAX_CONFIRMS 64                      /* confirmations that ride on one message */
#define DDI_MAX_BLOCKS (UINT32_C(1) << 22)       /* block indices in one request */
#define DDI_MAX_BODY (DDI_MAX_BLOCKS * 4 + 4096) /* body of any message */
#define DDI_GENERATION 16                        /* bytes of a generation id */
#define DDI_TOKEN 16                             /* bytes of a link token */
#define DDI_MAX_TEXT 400                         /* bytes of a text */

enum ddi_message_type {
    DDI_HELLO = 1,   /* client -> server, first message of a control connection */
    DDI_WELCOME = 2, /* server -> client: accepted */
    DDI_READY = 3,   /* client -> server: accepted too, the link stands */
    DDI_REFUSE = 4,  /* either: not with you, and why; then the connection closes */
    DDI_PING = 5,    /* either, on control and data connections */
    DDI_PONG = 6,
    DDI_BYE = 7, /* either: orderly end of the link */
    DDI_BYE_ACK = 8,
    DDI_ATTACH = 9, /* client -> server, first message of a data connection */
    DDI_ATTACHED = 10,
    DDI_PULL = 11,    /* puller -> owner on a data connection */
    DDI_DATA = 12,    /* owner -> puller: header of the bytes that follow the message */
    DDI_END = 13,     /* owner -> puller, behind the bytes: still granted after the last one */
    DDI_FAIL = 14,    /* owner -> puller instead of DATA */
    DDI_CONFIRM = 15, /* puller -> owner: these transfers arrived whole */
    DDI_DIAL = 16     /* server -> client on the control connection: attach data connections */
};

struct ddi_header {
    uint32_t body; /* bytes that follow */
    uint16_t type;
    uint8_t version;
    uint64_t id; /* of the transfer, ping or request; 0 elsewhere */
};

/* HELLO and WELCOME. */
struct ddi_hello {
    uint16_t min_version; /* HELLO; in a WELCOME both are the chosen version */
    uint16_t max_version;
    uint64_t features; /* bit set, none defined yet */
    uint8_t generation[DDI_GENERATION];
    uint64_t cluster_id;
    uint64_t expected_id; /* HELLO: whom the client wants; WELCOME: the client's id, echoed */
    uint8_t role;
    uint8_t token[DDI_TOKEN]; /* WELCOME: proves to the listener that a data connection belongs
                                 to the link; zero in a HELLO */
};

/* REFUSE and FAIL. */
struct ddi_refusal {
    dd_status status;
    char text[DDI_MAX_TEXT + 1];
};

struct ddi_attach {
    uint16_t version;
    uint8_t token[DDI_TOKEN];
    uint8_t user; /* 0: the one who dialled sends requests, 1: the one who accepted */
};

enum ddi_pull_mode {
    DDI_PULL_SLICE = 0,  /* `bytes` from `offset` of the batch slice, of each tensor */
    DDI_PULL_BLOCKS = 1, /* the listed blocks of each tensor */
    DDI_PULL_PIECES = 2  /* the batch slice, cut into piece_count pieces of block_bytes */
};

struct ddi_pull {
    uint32_t left_ms; /* the puller waits no longer than this */
    uint8_t mode;     /* enum ddi_pull_mode */
    bool keep_key;
    uint8_t key_kind; /* dd_key_kind; DD_KEY_NONE: by cache id */
    uint64_t key_id;
    uint64_t model_id;
    int64_t cache;
    uint32_t batch;
    uint32_t tensors_per_layer; /* 0: default */
    uint32_t first_layer;
    uint32_t layer_count;  /* 0: all */
    uint32_t want_tensors; /* tensors the puller has room for; the owner refuses another count */
    uint64_t offset;       /* SLICE */
    uint64_t bytes;        /* SLICE: per tensor */
    uint64_t block_bytes;  /* BLOCKS, PIECES */
    uint32_t piece_count;  /* PIECES */
    uint16_t stream_count; /* data connections the bytes are spread over, this one first */
    uint32_t streams[DDI_MAX_STREAMS]; /* their ids, from ATTACHED */
    uint16_t confirm_count;            /* earlier transfers that arrived whole, see CONFIRM */
    uint64_t confirms[DDI_MAX_CONFIRMS];
    uint32_t block_count;   /* BLOCKS */
    const uint64_t *blocks; /* to encode: borrowed; decoded: the array given to the decoder */
};

struct ddi_data {
    uint64_t bytes; /* per tensor, of the whole transfer */
    uint64_t first; /* position in the transfer's stream where this connection begins */
    uint64_t len;   /* bytes that follow on this connection */
    bool confirm;   /* a CONFIRM uses a key up */
};

struct ddi_confirm {
    uint16_t count;
    uint64_t ids[DDI_MAX_CONFIRMS];
};

/* Header. Decoding checks type, version range and that body <= limit; only a PULL is ever longer
 * than DDI_MAX_GREETING, and messages without fields have no body. */
void ddi_encode_header(uint8_t out[DDI_HEADER], const struct ddi_header *header);
dd_status ddi_decode_header(const uint8_t in[DDI_HEADER], uint32_t limit, struct ddi_header *out,
                            dd_error *err);

/* Encode a whole message, header included, into out[0..capacity). Return the number of bytes, 0 if
 * it does not fit. DDI_HEADER + DDI_MAX_GREETING bytes hold every message but PULL. */
size_t ddi_encode_hello(uint8_t *out, size_t capacity, enum ddi_message_type type,
                        const struct ddi_hello *hello); /* HELLO, WELCOME */
size_t ddi_encode_empty(uint8_t *out, size_t capacity, enum ddi_message_type type,
                        uint64_t id); /* READY, PING, PONG, BYE, BYE_ACK */
size_t ddi_encode_refusal(uint8_t *out, size_t capacity, enum ddi_message_type type, uint64_t id,
                          dd_status status, const char *text); /* REFUSE, FAIL */
size_t ddi_encode_attach(uint8_t *out, size_t capacity, const struct ddi_attach *attach);
/* ATTACHED: id of the connection, END: status, DIAL: count. */
size_t ddi_encode_u32(uint8_t *out, size_t capacity, enum ddi_message_type type, uint64_t id,
                      uint32_t value);
size_t ddi_encode_data(uint8_t *out, size_t capacity, uint64_t id, const struct ddi_data *data);
size_t ddi_encode_confirm(uint8_t *out, size_t capacity, const struct ddi_confirm *confirm);

/* Bytes that ddi_encode_pull needs for this request, header included. A request that no message
 * can carry (a count above its limit, a block index above 2^32 - 1) encodes to 0 in any room. */
size_t ddi_pull_size(const struct ddi_pull *pull);
size_t ddi_encode_pull(uint8_t *out, size_t capacity, uint64_t id, const struct ddi_pull *pull);

/* Decode the body of a message whose header was decoded. DD_INVALID names message and field. */
dd_status ddi_decode_hello(const uint8_t *body, size_t len, struct ddi_hello *out, dd_error *err);
dd_status ddi_decode_refusal(const uint8_t *body, size_t len, struct ddi_refusal *out,
                             dd_error *err);
dd_status ddi_decode_attach(const uint8_t *body, size_t len, struct ddi_attach *out, dd_error *err);
dd_status ddi_decode_u32(const uint8_t *body, size_t len, uint32_t *out, dd_error *err);
dd_status ddi_decode_data(const uint8_t *body, size_t len, struct ddi_data *out, dd_error *err);
dd_status ddi_decode_confirm(const uint8_t *body, size_t len, struct ddi_confirm *out,
                             dd_error *err);

/* Decode a PULL. `blocks` has room for body_len / 4 indices; out->blocks points to it. */
dd_status ddi_decode_pull(const uint8_t *body, size_t len, uint64_t *blocks, struct ddi_pull *out,
                          dd_error *err);

#endif

/* A peer that misbehaves on purpose: speaks the protocol by hand on real sockets, from a thread.
 *
 * It accepts one link and one data connection, answers the first PULL as its script says, and then
 * waits until it is told to end. */
#ifndef DDI_FAKE_OWNER_H
#define DDI_FAKE_OWNER_H

#include "wire/message.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum fake_script {
    FAKE_HALF_THEN_CLOSE,   /* half of the bytes, then the data connection closes */
    FAKE_HALF_THEN_SILENCE, /* half of the bytes; the rest when `resume` is posted */
    FAKE_NO_REPLY,          /* takes the request and says nothing */
    FAKE_WITHDRAWN,         /* all bytes, but END says that the source was withdrawn */
    FAKE_WRONG_SIZE,        /* offers more bytes than asked for */
    FAKE_GARBAGE,           /* bytes that are no message */
    FAKE_WRONG_VERSION      /* welcomes with a protocol version of the future */
};

struct fake_owner {
    uint64_t cluster_id;
    enum fake_script script;
    int listener;
    atomic_int control;
    atomic_int data;
    char address[64];
    pthread_t thread;
    sem_t resume;
    sem_t resumed; /* the late bytes have left */
    atomic_bool is_ending;
};

static inline bool fake_read(int fd, void *data, size_t n)
{
    uint8_t *at = data;

    while (n > 0) {
        ssize_t got = recv(fd, at, n, 0);

        if (got <= 0) {
            return false;
        }
        at += got;
        n -= (size_t)got;
    }
    return true;
}

static inline void fake_write(int fd, const void *data, size_t n)
{
    (void)!send(fd, data, n, MSG_NOSIGNAL);
}

/* Read one message; false when the connection ends. */
static inline bool fake_message(int fd, struct ddi_header *header, uint8_t *body)
{
    uint8_t bytes[DDI_HEADER];

    return fake_read(fd, bytes, sizeof(bytes)) &&
           ddi_decode_header(bytes, DDI_MAX_GREETING, header, NULL) == DD_OK &&
           fake_read(fd, body, header->body);
}

static inline void fake_welcome(struct fake_owner *fake, uint64_t client)
{
    struct ddi_hello hello = {.min_version = DDI_PROTOCOL_MIN,
                              .max_version = DDI_PROTOCOL_MAX,
                              .cluster_id = fake->cluster_id,
                              .expected_id = client,
                              .role = DD_ROLE_PROMPT,
                              .generation = {1, 2, 3},
                              .token = {9, 9, 9}};
    uint8_t bytes[512];

    if (fake->script == FAKE_WRONG_VERSION) {
        hello.min_version = hello.max_version = 77;
    }
    fake_write(fake->control, bytes, ddi_encode_hello(bytes, sizeof(bytes), DDI_WELCOME, &hello));
}

/* Answer one PULL. `total` bytes are wanted. */
static inline void fake_answer(struct fake_owner *fake, const struct ddi_header *header,
                               const struct ddi_pull *pull)
{
    uint64_t total = pull->bytes * pull->want_tensors;
    struct ddi_data data = {.bytes = pull->bytes, .len = total};
    uint8_t bytes[128];
    uint8_t *payload = calloc(1, total * 2);

    (void)memset(payload, 0xAB, total * 2);
    if (fake->script == FAKE_WRONG_SIZE) {
        data.bytes *= 2;
        data.len *= 2;
    }
    if (fake->script == FAKE_GARBAGE) {
        fake_write(fake->data, payload, 100);
    } else if (fake->script != FAKE_NO_REPLY) {
        fake_write(fake->data, bytes, ddi_encode_data(bytes, sizeof(bytes), header->id, &data));
    }
    if (fake->script == FAKE_WITHDRAWN || fake->script == FAKE_WRONG_SIZE) {
        fake_write(fake->data, payload, data.len);
        fake_write(fake->data, bytes,
                   ddi_encode_u32(bytes, sizeof(bytes), DDI_END, header->id,
                                  fake->script == FAKE_WITHDRAWN ? DD_NO_CACHE : DD_OK));
    }
    if (fake->script == FAKE_HALF_THEN_CLOSE || fake->script == FAKE_HALF_THEN_SILENCE) {
        fake_write(fake->data, payload, total / 2);
    }
    if (fake->script == FAKE_HALF_THEN_CLOSE) {
        (void)shutdown(fake->data, SHUT_RDWR);
    }
    if (fake->script == FAKE_HALF_THEN_SILENCE) {
        (void)sem_wait(&fake->resume);
        fake_write(fake->data, payload, total - total / 2);
        (void)sem_post(&fake->resumed);
    }
    free(payload);
}

static inline void *fake_run(void *context)
{
    struct fake_owner *fake = context;
    uint8_t body[DDI_MAX_GREETING];
    uint64_t blocks[DDI_MAX_GREETING / 4];
    struct ddi_header header;
    struct ddi_hello hello;
    struct ddi_pull pull;
    uint8_t bytes[64];

    fake->control = accept(fake->listener, NULL, NULL);
    if (fake->control < 0 || !fake_message(fake->control, &header, body) ||
        ddi_decode_hello(body, header.body, &hello, NULL) != DD_OK) {
        return NULL;
    }
    fake_welcome(fake, hello.cluster_id);
    fake->data = accept(fake->listener, NULL, NULL);
    if (fake->data < 0 || !fake_message(fake->data, &header, body)) {
        return NULL;
    }
    fake_write(fake->data, bytes, ddi_encode_u32(bytes, sizeof(bytes), DDI_ATTACHED, 0, 1));
    if (fake_message(fake->data, &header, body) &&
        ddi_decode_pull(body, header.body, blocks, &pull, NULL) == DD_OK) {
        fake_answer(fake, &header, &pull);
    }
    return NULL;
}

static inline bool fake_open(struct fake_owner *fake, uint64_t cluster_id, enum fake_script script)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(at);

    (void)memset(fake, 0, sizeof(*fake));
    fake->cluster_id = cluster_id;
    fake->script = script;
    fake->control = fake->data = -1;
    (void)sem_init(&fake->resume, 0, 0);
    (void)sem_init(&fake->resumed, 0, 0);
    fake->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(fake->listener, (struct sockaddr *)&at, sizeof(at)) != 0 ||
        listen(fake->listener, 8) != 0 ||
        getsockname(fake->listener, (struct sockaddr *)&at, &len) != 0) {
        return false;
    }
    (void)snprintf(fake->address, sizeof(fake->address), "127.0.0.1:%u", ntohs(at.sin_port));
    return pthread_create(&fake->thread, NULL, fake_run, fake) == 0;
}

static inline void fake_close(struct fake_owner *fake)
{
    (void)sem_post(&fake->resume);
    (void)shutdown(fake->listener, SHUT_RDWR);
    (void)shutdown(fake->control, SHUT_RDWR);
    (void)shutdown(fake->data, SHUT_RDWR);
    (void)pthread_join(fake->thread, NULL);
    (void)close(fake->listener);
    (void)close(fake->control);
    (void)close(fake->data);
    (void)sem_destroy(&fake->resume);
    (void)sem_destroy(&fake->resumed);
}

#endif

/* Little-endian reader and writer for bytes from and to outside. Both keep a "bad" flag instead of
 * returning errors: read or write everything, then ask once. Pure. */
#ifndef DDI_BYTES_H
#define DDI_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct ddi_reader {
    const uint8_t *at;
    size_t left;
    bool bad; /* something was read past the end; its value was 0 */
};

struct ddi_writer {
    uint8_t *at;
    size_t left;
    size_t len; /* written so far */
    bool bad;   /* something did not fit */
};

static inline struct ddi_reader ddi_reader_init(const void *data, size_t len)
{
    return (struct ddi_reader){.at = data, .left = len, .bad = false};
}

static inline struct ddi_writer ddi_writer_init(void *data, size_t len)
{
    return (struct ddi_writer){.at = data, .left = len, .len = 0, .bad = false};
}

static inline uint64_t ddi_read_uint(struct ddi_reader *r, size_t width)
{
    uint64_t value = 0;

    if (r->left < width) {
        r->bad = true;
        r->left = 0;
        return 0;
    }
    for (size_t i = 0; i < width; i++) {
        value |= (uint64_t)r->at[i] << (8 * i);
    }
    r->at += width;
    r->left -= width;
    return value;
}

static inline uint8_t ddi_read_u8(struct ddi_reader *r)
{
    return (uint8_t)ddi_read_uint(r, 1);
}

static inline uint16_t ddi_read_u16(struct ddi_reader *r)
{
    return (uint16_t)ddi_read_uint(r, 2);
}

static inline uint32_t ddi_read_u32(struct ddi_reader *r)
{
    return (uint32_t)ddi_read_uint(r, 4);
}

static inline uint64_t ddi_read_u64(struct ddi_reader *r)
{
    return ddi_read_uint(r, 8);
}

/* Borrow `len` bytes of the input; NULL and bad when fewer are left. */
static inline const uint8_t *ddi_read_bytes(struct ddi_reader *r, size_t len)
{
    const uint8_t *data = r->at;

    if (r->left < len) {
        r->bad = true;
        r->left = 0;
        return NULL;
    }
    r->at += len;
    r->left -= len;
    return data;
}

static inline void ddi_write_uint(struct ddi_writer *w, uint64_t value, size_t width)
{
    if (w->left < width) {
        w->bad = true;
        w->left = 0;
        return;
    }
    for (size_t i = 0; i < width; i++) {
        w->at[i] = (uint8_t)(value >> (8 * i));
    }
    w->at += width;
    w->left -= width;
    w->len += width;
}

static inline void ddi_write_u8(struct ddi_writer *w, uint8_t value)
{
    ddi_write_uint(w, value, 1);
}

static inline void ddi_write_u16(struct ddi_writer *w, uint16_t value)
{
    ddi_write_uint(w, value, 2);
}

static inline void ddi_write_u32(struct ddi_writer *w, uint32_t value)
{
    ddi_write_uint(w, value, 4);
}

static inline void ddi_write_u64(struct ddi_writer *w, uint64_t value)
{
    ddi_write_uint(w, value, 8);
}

static inline void ddi_write_bytes(struct ddi_writer *w, const void *data, size_t len)
{
    if (w->left < len) {
        w->bad = true;
        w->left = 0;
        return;
    }
    if (len > 0) {
        (void)memcpy(w->at, data, len);
    }
    w->at += len;
    w->left -= len;
    w->len += len;
}

#endif

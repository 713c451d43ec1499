/* The planner: from a selection to segments. Pure: same input, same output; no clock, lock, I/O.
 *
 * A plan describes one byte stream: for every selected tensor in order, for every piece i in
 * order, the bytes of that piece. Each side of a transfer says where this stream lies in its own
 * memory. Two processes that plan the same selection agree on the stream although each knows only
 * its own addresses: the other side is then a DDI_SIDE_STREAM, whose "addresses" are positions.
 *
 * Nothing is allocated per segment: a cursor emits segments in batches into the caller's array. */
#ifndef DDI_PLAN_H
#define DDI_PLAN_H

#include "base/status.h"
#include "model/segment.h"

enum ddi_side_kind {
    DDI_SIDE_STREAM, /* positions in the stream itself: 0, 1, 2 ... */
    DDI_SIDE_LINEAR, /* bytes follow each other inside a tensor, from `offset` */
    DDI_SIDE_BLOCKS  /* piece i is block blocks[i] of the tensor */
};

struct ddi_side {
    enum ddi_side_kind kind;
    const uint64_t *tensors; /* address of each selected tensor; unused for a stream */
    uint64_t tensor_bytes;   /* size of each tensor: nothing outside it is ever emitted */
    uint64_t offset;         /* LINEAR: first byte inside each tensor */
    const uint64_t *blocks;  /* BLOCKS: block index of each piece */
    uint64_t block_count;    /* BLOCKS: how many blocks a tensor has */
};

/* What ddi_plan_init is given. `tensors` is kept until ddi_plan_fini, block lists are not. */
struct ddi_plan_input {
    struct ddi_side src;
    struct ddi_side dst;
    uint32_t tensor_count; /* selected tensors, at least 1 */
    uint64_t bytes;        /* of the stream per tensor, at least 1 */
    uint64_t piece_bytes;  /* with a BLOCKS side: its block size, tensor_bytes / block_count (the
                              last piece may be short). Without one: where cuts are made, 0 none;
                              give the block size when the other process has blocks */
    uint64_t piece_count;  /* with a BLOCKS side: length of the lists = ceil(bytes/piece_bytes) */
};

/* Pieces that follow each other on both sides, merged. Offsets are inside a tensor. */
struct ddi_run {
    uint64_t src;
    uint64_t dst;
    uint64_t at; /* position in the tensor's stream where the run begins */
    uint64_t len;
};

#define DDI_PLAN_INLINE_RUNS 16

struct ddi_plan {
    const uint64_t *src_tensors; /* NULL: stream */
    const uint64_t *dst_tensors; /* NULL: stream */
    uint32_t tensor_count;
    uint64_t bytes;       /* per tensor */
    uint64_t total;       /* bytes of the whole transfer */
    uint64_t piece_bytes; /* 0: no pieces */
    struct ddi_run *runs; /* the same for every tensor */
    size_t run_count;
    struct ddi_run inline_runs[DDI_PLAN_INLINE_RUNS]; /* so that small plans allocate nothing */
};

/* Where a walk over part of the plan stands. Plain value: copy it to walk again. */
struct ddi_cursor {
    const struct ddi_plan *plan;
    uint32_t tensor;
    size_t run;
    uint64_t in_run; /* bytes of the run already emitted */
    uint64_t left;   /* bytes still to emit */
};

/* Check the input and merge neighbours. One allocation at most, of the order of the block lists.
 * Destination blocks must be unique (see ddi_plan_unique); the caller sees to it.
 *
 * Fails:  DD_INVALID naming the side ("source" or "destination"), found and limit: a block out of
 *         range, bytes outside a tensor, overflow, sizes that do not fit; DD_NO_MEMORY. */
dd_status ddi_plan_init(struct ddi_plan *plan, const struct ddi_plan_input *input, dd_error *err);

/* Free what init allocated. A zeroed plan is fine. Plans are not copied: runs may point inside. */
void ddi_plan_fini(struct ddi_plan *plan);

/* Make block pairs unique by destination: the last pair of each destination wins, order kept.
 * Works in place and sets *count. `src` may be NULL: then a pair that loses would change the
 * meaning of the pieces behind it, so duplicates are refused (DD_INVALID). Costs one bit per block
 * of the destination, nothing when `dst` is rising.
 * Fails:  DD_INVALID: a dst index >= block_count (position, index and count in the text, nothing
 *         changed); DD_NO_MEMORY. */
dd_status ddi_plan_unique(uint64_t *src, uint64_t *dst, size_t *count, uint64_t block_count,
                          dd_error *err);

/* Set a cursor to the bytes [first, first + len) of the stream; both lie inside plan->total. */
struct ddi_cursor ddi_cursor_at(const struct ddi_plan *plan, uint64_t first, uint64_t len);

/* Emit up to `max` segments; returns how many, 0 at the end. Segments come in stream order, are not
 * empty, and touching ones of the same tensor are merged. */
size_t ddi_cursor_next(struct ddi_cursor *cursor, struct ddi_segment *out, size_t max);

/* Cut the stream into `parts` of about equal size, at piece borders where there are pieces, else at
 * multiples of 4096 inside a tensor: return the first byte of part `part` (part == parts: the
 * total). Parts may be empty; both sides of a transfer compute the same cuts. */
uint64_t ddi_plan_cut(const struct ddi_plan *plan, uint32_t part, uint32_t parts);

#endif

/* datadist: move the KV cache of large language models between processes.
 *
 * A prefill process computes a KV cache, a decode process on the same or another host needs it.
 * Each process runs one or more engines. An engine owns caches (groups of equally shaped tensors),
 * links to other engines by address, and pulls bytes out of their caches into its own:
 *
 *     dd_engine_create -> dd_engine_set ... -> dd_engine_start
 *         -> dd_link_open -> dd_cache_alloc -> dd_pull ... -> dd_cache_free
 *     -> dd_engine_stop -> dd_engine_destroy
 *
 * Rules that hold for every function, unless its comment says otherwise:
 *
 * Thread:   any thread, any number of calls at once.
 * Memory:   pointer parameters are borrowed for the call. Once a call returns, with any status,
 *           nothing writes to the memory it was given any more ("quiet memory").
 * Status:   DD_OK, or a reason. Outputs are written on DD_OK only.
 * Errors:   `err` may be NULL. Otherwise a failure fills it with the status, the system's error
 *           number (0 if none) and a text that names what failed, what was found and wanted.
 * Structs:  parameter structs begin with `size`: set it to sizeof of the struct, zero the rest.
 *           Zero always means the default, so new fields do not break old callers.
 * Units:    bytes and milliseconds.
 *
 * Plain C11, valid C++. The interface follows Huawei's LLM-DataDist, whose status numbers it keeps.
 */
#ifndef DATADIST_H
#define DATADIST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(DD_STATIC)
#define DD_API
#else
#define DD_API __attribute__((visibility("default")))
#endif

#define DD_VERSION_MAJOR 0
#define DD_VERSION_MINOR 1
#define DD_VERSION_PATCH 0
#define DD_VERSION "0.1.0"

/* ---- Status ---------------------------------------------------------------------------------- */

/* What a call came to. Numbers are those of LLM-DataDist (0x5010B000 + n), so logs agree. */
typedef uint32_t dd_status;

#define DD_OK UINT32_C(0)
#define DD_FAILED UINT32_C(0xFFFFFFFF)     /* none of the reasons below */
#define DD_NO_CACHE UINT32_C(0x5010B002)   /* cache or key unknown, freed or used up */
#define DD_REPEATED UINT32_C(0x5010B003)   /* same cluster twice in one call */
#define DD_COMPLETED UINT32_C(0x5010B004)  /* request already completed */
#define DD_INVALID UINT32_C(0x5010B005)    /* an argument, named in the text */
#define DD_FINALIZED UINT32_C(0x5010B006)  /* engine not started, or stopped */
#define DD_NOT_LINKED UINT32_C(0x5010B007) /* no link to that cluster, or lost: "peer lost" */
#define DD_ALREADY_LINKED UINT32_C(0x5010B008)
#define DD_LINK_FAILED UINT32_C(0x5010B009) /* unreachable, refused, or wrong peer */
#define DD_UNLINK_FAILED UINT32_C(0x5010B00A)
#define DD_PEER_NOT_TOLD UINT32_C(0x5010B00B) /* unlinked here, the peer could not be told */
#define DD_TOO_MANY_CLUSTERS UINT32_C(0x5010B00C)
#define DD_LINK_IN_PROGRESS UINT32_C(0x5010B00D) /* a link or unlink of this cluster is running */
#define DD_PREFIX_EXISTS UINT32_C(0x5010B00F)
#define DD_NO_PREFIX UINT32_C(0x5010B010)
#define DD_TOO_LONG UINT32_C(0x5010B011)
#define DD_NO_FREE_BLOCK UINT32_C(0x5010B012)
#define DD_BLOCKS_NO_MEMORY UINT32_C(0x5010B013)
#define DD_KEY_EXISTS UINT32_C(0x5010B015) /* the key names another live cache */
#define DD_LINKS_EXIST UINT32_C(0x5010B018)
#define DD_NOT_ENABLED UINT32_C(0x5010B019) /* feature not enabled */
#define DD_TIMEOUT UINT32_C(0x5010B01A)
#define DD_LINK_BUSY UINT32_C(0x5010B01B)
#define DD_NO_MEMORY UINT32_C(0x5010B01C)

/* Bytes of text in an error, the closing NUL included. Longer texts are cut. */
#define DD_ERROR_TEXT 512

/* Why a call failed. Plain value, owned by the caller; nothing to free. */
typedef struct dd_error {
    dd_status status;
    int system_error; /* errno of the call that failed, 0 if none */
    char text[DD_ERROR_TEXT];
} dd_error;

/* Return the name of a status ("DD_TIMEOUT"), "unknown status" for a number that is none. */
DD_API const char *dd_status_name(dd_status status);

/* Return the version of the library at run time, like "0.1.0". */
DD_API const char *dd_version(void);

/* ---- Engine ---------------------------------------------------------------------------------- */

/* One participant: its caches, its links, its threads. A process may have several. */
typedef struct dd_engine dd_engine;

/* What an engine says it is. Informational in C: every role may do everything. */
typedef enum dd_role { DD_ROLE_PROMPT = 1, DD_ROLE_DECODER = 2, DD_ROLE_MIX = 3 } dd_role;

typedef enum dd_log_level {
    DD_LOG_DEBUG = 0,
    DD_LOG_INFO = 1,
    DD_LOG_WARNING = 2,
    DD_LOG_ERROR = 3,
    DD_LOG_OFF = 4
} dd_log_level;

/* Receive one log line, without a line feed. Called by any engine thread, no lock held; must not
 * call into the engine and should return soon. */
typedef void (*dd_log_fn)(void *context, dd_log_level level, const char *line);

/* Create an engine that is not running yet.
 *
 * `cluster_id` names this engine to its peers and must be unique among all that link together.
 *
 * Memory:   the caller owns *engine and gives it to dd_engine_destroy.
 * Fails:    DD_INVALID (role; a bad value in the environment), DD_NO_MEMORY.
 */
DD_API dd_status dd_engine_create(uint64_t cluster_id, dd_role role, dd_engine **engine,
                                  dd_error *err);

/* Set an option before start, such as ("datadist.listen", "127.0.0.1:0"). docs/config.md lists all.
 *
 * The environment variable DATADIST_<NAME> (upper case, dots as underscores) gives the default.
 *
 * Fails:    DD_INVALID (unknown name, or value out of range: the text says what is allowed;
 *           engine already started).
 */
DD_API dd_status dd_engine_set(dd_engine *engine, const char *key, const char *value,
                               dd_error *err);

/* Send log lines to `fn` instead of standard error. Before start. `context` is kept until destroy. */
DD_API dd_status dd_engine_set_log(dd_engine *engine, dd_log_fn fn, void *context, dd_error *err);

/* Start the engine: its loop thread and, if datadist.listen is set, its listener.
 *
 * When this returns, the port is open.
 *
 * Thread:   not together with dd_engine_set or dd_engine_stop of the same engine.
 * Fails:    DD_INVALID (already started; bad address), DD_FAILED (port in use, named in the
 *           text), DD_NO_MEMORY.
 */
DD_API dd_status dd_engine_start(dd_engine *engine, dd_error *err);

/* Write the address the engine listens at, "127.0.0.1:43211", into `text`; "" if it does not.
 *
 * This is how the port that `:0` chose is read back.
 *
 * Fails:    DD_FINALIZED, DD_INVALID (`length` too small; 128 always suffices).
 */
DD_API dd_status dd_engine_address(dd_engine *engine, char *text, size_t length, dd_error *err);

/* Stop the engine: refuse new calls, end running ones with DD_FINALIZED, close all links, free all
 * caches that no view holds. Idempotent. An engine cannot be started again; create a new one.
 *
 * Blocks:   until every running call has returned and every engine thread has ended.
 */
DD_API void dd_engine_stop(dd_engine *engine);

/* Stop the engine if need be and free it. NULL is fine.
 *
 * Thread:   the last call that uses `engine`. Views stay valid until they are closed.
 */
DD_API void dd_engine_destroy(dd_engine *engine);

/* ---- Links ----------------------------------------------------------------------------------- */

/* A peer to link with, or to unlink from. */
typedef struct dd_target {
    size_t size;
    uint64_t cluster_id; /* the peer must report this id, else DD_LINK_FAILED */
    const char *remote;  /* "host:port" or "[v6]:port" where it listens; NULL allowed to unlink */
    const char *local;   /* source address to bind, without port; NULL: the system chooses.
                            One that this host does not have is left out, with a warning */
} dd_target;

/* Link with `n` peers, all in parallel. The peers listen, this engine is the client.
 *
 * `results[i]` is the status of target i, written on every return but DD_FINALIZED and DD_INVALID
 * of the call as a whole. A target that failed leaves nothing behind; the others stay linked.
 * While nobody listens at the address (connection refused) it is tried again until the time is up.
 *
 * Blocks:   until every target is decided, at most `timeout_ms`.
 * Fails:    the status of the last target that failed: DD_LINK_FAILED (the text names the address
 *           and, for a wrong peer, expected and found), DD_TIMEOUT, DD_ALREADY_LINKED,
 *           DD_LINK_IN_PROGRESS, DD_REPEATED (same id again in this call),
 *           DD_INVALID (n is 0, address does not parse).
 */
DD_API dd_status dd_link_open(dd_engine *engine, const dd_target *targets, size_t n,
                              dd_status *results, uint32_t timeout_ms, dd_error *err);

/* Unlink from `n` peers. Orderly: the peer is told and both ends close. With `force` only this end
 * is dropped, at once and without a word on the network (the peer notices the closed connection).
 *
 * Transfers that run on the link: an orderly unlink lets them end first, a forced one cuts them.
 *
 * Blocks:   at most `timeout_ms`.
 * Fails:    like dd_link_open: DD_NOT_LINKED, DD_LINK_IN_PROGRESS, DD_TIMEOUT (transfers did not
 *           end; the link was cut), DD_PEER_NOT_TOLD (the link is gone here; the peer did not
 *           answer).
 */
DD_API dd_status dd_link_close(dd_engine *engine, const dd_target *targets, size_t n,
                               dd_status *results, uint32_t timeout_ms, bool force, dd_error *err);

/* Make a round trip to a linked peer on the data path.
 *
 * Blocks:   at most datadist.sync_timeout_ms.
 * Fails:    DD_NOT_LINKED, DD_TIMEOUT.
 */
DD_API dd_status dd_link_check(dd_engine *engine, uint64_t cluster_id, dd_error *err);

/* ---- Caches ---------------------------------------------------------------------------------- */

/* Element types; numbers are those of LLM-DataDist. */
typedef enum dd_data_type {
    DD_FLOAT32 = 0,
    DD_FLOAT16 = 1,
    DD_INT8 = 2,
    DD_INT32 = 3,
    DD_UINT8 = 4,
    DD_INT16 = 6,
    DD_UINT16 = 7,
    DD_UINT32 = 8,
    DD_INT64 = 9,
    DD_UINT64 = 10,
    DD_FLOAT64 = 11,
    DD_BOOL = 12,
    DD_STRING = 13, /* 16 bytes each */
    DD_BFLOAT16 = 27
} dd_data_type;

typedef enum dd_placement { DD_HOST = 0, DD_DEVICE = 1 } dd_placement;

/* Most dimensions of a tensor. */
#define DD_MAX_DIMS 31

/* Shape of a cache: `tensor_count` tensors that all look alike, per device.
 *
 * dims[0] is the batch of a contiguous cache or the number of blocks of a blocks cache; one batch
 * slice or block is (bytes of a tensor) / dims[0]. Every dimension is at least 1.
 */
typedef struct dd_cache_desc {
    size_t size;
    uint32_t tensor_count;
    dd_data_type data_type;
    dd_placement placement; /* with no accelerator both mean page-aligned host memory */
    uint32_t dim_count;     /* 1 to DD_MAX_DIMS */
    const int64_t *dims;
} dd_cache_desc;

/* A name under which peers find a cache. Identity is (kind, id, model_id). */
typedef enum dd_key_kind {
    DD_KEY_NONE = 0,    /* placeholder: this batch index has no key */
    DD_KEY_REQUEST = 1, /* one batch slice; used up by the first complete pull */
    DD_KEY_PREFIX = 2,  /* one batch slice; pulled any number of times */
    DD_KEY_BLOCKS = 3   /* a blocks cache; `id` is 0. Does not keep the cache alive */
} dd_key_kind;

typedef struct dd_key {
    size_t size;
    dd_key_kind kind;
    uint64_t id;
    uint64_t model_id;
} dd_key;

/* Allocate a cache from the engine's pool and give it an id, from 1 upwards, never used twice.
 *
 * keys[i] names batch slice i (at most dims[0] of them; if a key comes twice the last one wins), or
 * there is one DD_KEY_BLOCKS key. A cache lives until its id is freed and every request and prefix
 * key was used up or removed. Tensors are aligned to 512 bytes or better; fresh memory is zero.
 *
 * Blocks:   while the system makes memory; and, when memory or a key is still held by a pull whose
 *           confirmation is under way, up to half a second for that.
 * Fails:    DD_INVALID (description or keys), DD_KEY_EXISTS (a key names a live cache; nothing is
 *           allocated), DD_NO_MEMORY (bytes wanted, used and allowed in the text), DD_FINALIZED.
 */
DD_API dd_status dd_cache_alloc(dd_engine *engine, const dd_cache_desc *desc, const dd_key *keys,
                                size_t key_count, int64_t *cache, dd_error *err);

/* Write the address of every tensor of one device into `addresses[0..tensor_count)`.
 *
 * The addresses may be used while the cache's id is not freed; see dd_view_open to hold longer.
 *
 * Fails:    DD_NO_CACHE, DD_INVALID (`tensor_count` differs from the description; device).
 */
DD_API dd_status dd_cache_addresses(dd_engine *engine, int64_t cache, uint32_t device,
                                    uint64_t *addresses, uint32_t tensor_count, dd_error *err);

/* Give the id of a cache back. Returns at once, also while peers are pulling: the memory goes back
 * to the pool when keys, running transfers and views are gone. A blocks key ends here.
 *
 * Fails:    DD_NO_CACHE (unknown, or already freed).
 */
DD_API dd_status dd_cache_free(dd_engine *engine, int64_t cache, dd_error *err);

/* Remove a request or prefix key; peers do not find it any more. An unknown key is DD_OK. */
DD_API dd_status dd_key_remove(dd_engine *engine, const dd_key *key, dd_error *err);

/* Direct access to one tensor that keeps its memory alive, past dd_cache_free, dd_engine_stop and
 * dd_engine_destroy, until dd_view_close. */
typedef struct dd_view dd_view;

/* Open a view. Fails: DD_NO_CACHE, DD_INVALID (device or tensor), DD_NO_MEMORY. */
DD_API dd_status dd_view_open(dd_engine *engine, int64_t cache, uint32_t device, uint32_t tensor,
                              dd_view **view, dd_error *err);
DD_API void *dd_view_data(const dd_view *view);
DD_API uint64_t dd_view_bytes(const dd_view *view);
DD_API void dd_view_close(dd_view *view); /* NULL is fine */

/* ---- Transfers ------------------------------------------------------------------------------- */

/* A cache at a peer: by key, or by id and batch index if `cache` is not 0. */
typedef struct dd_source {
    size_t size;
    uint64_t cluster_id;
    dd_key key;
    int64_t cache;
    uint32_t batch;
} dd_source;

/* A run of layers. Layer l is the tensors l*n .. l*n+n-1, n = tensors_per_layer. */
typedef struct dd_layers {
    uint32_t first;
    uint32_t count; /* 0: all layers */
} dd_layers;

/* Which part of a contiguous cache is pulled, and where it goes. All zero: everything, to batch 0. */
typedef struct dd_slice {
    size_t size;
    uint64_t bytes;      /* of every tensor; 0: destination's batch slice less dst_offset */
    uint64_t src_offset; /* bytes, inside the source's batch slice */
    uint64_t dst_offset; /* bytes, inside the destination's batch slice */
    uint32_t dst_batch;
    uint32_t tensors_per_layer; /* 0: 2, a key and a value tensor */
    dd_layers src_layers;
    dd_layers dst_layers;
    bool keep_key; /* do not use up a request key */
} dd_slice;

/* Pull a batch slice of a peer's cache into a batch slice of `cache`.
 *
 * The number of selected tensors must be equal on both sides; types and shapes are not compared.
 * A successful pull uses up the request key of the slice, also when it asked for some bytes only
 * (unless keep_key; a pull of some tensors counts them, and the key goes when every tensor was pulled
 * once). A failed pull never does and
 * leaves the destination's bytes undefined.
 *
 * Blocks:   until all bytes are in place, at most datadist.sync_timeout_ms.
 * Fails:    DD_NO_CACHE (`cache` unknown here, or the source at the peer), DD_NOT_LINKED (also
 *           "peer lost" in the middle), DD_INVALID (a range, on either side, with both numbers),
 *           DD_TIMEOUT (bytes done of wanted in the text), DD_FINALIZED (engine stopped).
 */
DD_API dd_status dd_pull(dd_engine *engine, const dd_source *source, int64_t cache,
                         const dd_slice *slice, dd_error *err);

/* Which blocks are pulled, and where they go. */
typedef struct dd_blocks {
    size_t size;
    const uint64_t *src; /* block indices at the peer; NULL: cut a contiguous source into blocks */
    const uint64_t *dst; /* block indices here; if one comes twice the last pair wins
                            (with `src` NULL: refused) */
    size_t count;
    uint32_t tensors_per_layer; /* 0: 2 */
    dd_layers src_layers;
    dd_layers dst_layers;
} dd_blocks;

/* Pull blocks of a peer's cache into blocks of `cache`: block src[i] goes to block dst[i].
 *
 * Block sizes must be equal on both sides. With `src` NULL the source is contiguous: piece i of
 * its batch slice, cut at this cache's block size, goes to block dst[i]; the last may be short.
 *
 * Blocks, Fails: as dd_pull. Blocks keys are never used up.
 */
DD_API dd_status dd_pull_blocks(dd_engine *engine, const dd_source *source, int64_t cache,
                                const dd_blocks *blocks, dd_error *err);

/* ---- Statistics ------------------------------------------------------------------------------ */

/* Counters since start and present levels. A snapshot; fields need not fit each other exactly. */
typedef struct dd_stats {
    size_t size;
    uint64_t links;  /* linked peers now */
    uint64_t caches; /* entries now, freed ones that keys or transfers hold included */
    uint64_t keys;   /* valid keys now */
    uint64_t pins;   /* caches in use by transfers now */
    uint64_t pulls;  /* pulls that succeeded here */
    uint64_t pulls_failed;
    uint64_t bytes_pulled; /* by pulls that succeeded */
    uint64_t serves;       /* requests of peers that were served to the last byte */
    uint64_t serves_failed;
    uint64_t bytes_served;
    uint64_t pool_limit_bytes; /* most the pool may use; 0: no limit set */
    uint64_t pool_used_bytes;
    uint64_t pool_peak_bytes;
    uint64_t pool_largest_free; /* largest tensor that fits without growing */
} dd_stats;

/* Fill `stats`, whose `size` the caller has set. Fails: DD_INVALID (size), DD_FINALIZED. */
DD_API dd_status dd_stats_get(dd_engine *engine, dd_stats *stats, dd_error *err);

#ifdef __cplusplus
}
#endif
#endif

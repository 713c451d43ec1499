/* Devices: where cache memory lives. One table of operations; `cpu` is always there and stands for
 * DD_DEVICE where no accelerator exists. */
#ifndef DDI_DEVICE_H
#define DDI_DEVICE_H

#include "base/status.h"

/* Reserved address space of a device. Plain value. */
struct ddi_region {
    void *addr;     /* aligned to 2 MiB */
    uint64_t bytes; /* a multiple of 2 MiB */
    int fd;         /* cpu: the memory file behind it, close-on-exec; else -1 */
};

struct ddi_device_ops {
    const char *name;

    /* Reserve address space without memory behind it. Any thread. DD_NO_MEMORY. */
    dd_status (*reserve)(uint64_t bytes, struct ddi_region *out, dd_error *err);

    /* Put memory behind [offset, offset + len), zero where it is new, so that touching it cannot
     * fail. May block while pages are made. Any thread. DD_NO_MEMORY: nothing usable was added. */
    dd_status (*commit)(const struct ddi_region *region, uint64_t offset, uint64_t len,
                        dd_error *err);

    /* Give everything back. Nobody uses the region any more. */
    void (*release)(struct ddi_region *region);

    /* Copy n bytes; source and destination do not overlap. Returns when they are visible. */
    void (*copy)(void *dst, const void *src, uint64_t n);

    /* Bytes of memory this process may use: the machine's, or less where a control group says so. */
    uint64_t (*memory)(void);
};

extern const struct ddi_device_ops ddi_cpu_device;

#endif

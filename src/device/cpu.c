/* The CPU device: memory files, so that other processes can be given them later. */
#include "device/device.h"

#include "base/num.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define HUGE_PAGE (UINT64_C(2) << 20)
#define GROUPS "/sys/fs/cgroup"

/* Map the file at a 2 MiB boundary: reserve more address space, keep the aligned part. */
static void *map_aligned(int fd, uint64_t bytes)
{
    uint8_t *raw = mmap(NULL, bytes + HUGE_PAGE, PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    uint8_t *base;
    void *mapped;

    if (raw == MAP_FAILED) {
        return MAP_FAILED;
    }
    base = (uint8_t *)(uintptr_t)ddi_align_up((uint64_t)(uintptr_t)raw, HUGE_PAGE);
    mapped = mmap(base, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, fd,
                  0);
    if (mapped == MAP_FAILED) {
        (void)munmap(raw, bytes + HUGE_PAGE);
        return MAP_FAILED;
    }
    if (base > raw) {
        (void)munmap(raw, (size_t)(base - raw));
    }
    (void)munmap(base + bytes, (size_t)(raw + HUGE_PAGE - base));
    return mapped;
}

static dd_status reserve(uint64_t bytes, struct ddi_region *out, dd_error *err)
{
    uint64_t rounded;
    int fd;
    void *addr = MAP_FAILED;

    if (!ddi_add_u64(bytes, HUGE_PAGE - 1, &rounded) || rounded > INT64_MAX) {
        return ddi_fail(err, DD_NO_MEMORY, "%" PRIu64 " bytes are more than any machine has",
                        bytes);
    }
    rounded = ddi_align_up(bytes, HUGE_PAGE);
    fd = memfd_create("datadist", MFD_CLOEXEC);
    if (fd >= 0 && ftruncate(fd, (off_t)rounded) == 0) {
        addr = map_aligned(fd, rounded);
    }
    if (addr == MAP_FAILED) {
        int code = errno;

        if (fd >= 0) {
            (void)close(fd);
        }
        return ddi_fail_system(err, DD_NO_MEMORY, code, "cannot reserve %" PRIu64 " bytes", bytes);
    }
    (void)madvise(addr, rounded, MADV_HUGEPAGE); /* where the system gives them */
    (void)madvise(addr, rounded, MADV_DONTFORK); /* a child has no business here */
    *out = (struct ddi_region){.addr = addr, .bytes = rounded, .fd = fd};
    return DD_OK;
}

static dd_status commit(const struct ddi_region *region, uint64_t offset, uint64_t len,
                        dd_error *err)
{
    sigset_t all;
    sigset_t before;
    int code;

    /* Older kernels undo the whole call when a signal comes: with a timer running, a large range
     * would be tried again for ever. */
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    do {
        code = fallocate(region->fd, 0, (off_t)offset, (off_t)len) == 0 ? 0 : errno;
    } while (code == EINTR);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (code != 0) {
        return ddi_fail_system(err, DD_NO_MEMORY, code,
                               "the system has no %" PRIu64 " bytes of memory", len);
    }
    return DD_OK;
}

static void release(struct ddi_region *region)
{
    if (region->addr != NULL) {
        (void)munmap(region->addr, region->bytes);
        (void)close(region->fd);
        (void)memset(region, 0, sizeof(*region));
        region->fd = -1;
    }
}

static void copy(void *dst, const void *src, uint64_t n)
{
    (void)memcpy(dst, src, n);
}

/* The first number in a file; UINT64_MAX when there is none ("max"). */
static uint64_t read_limit(const char *path)
{
    uint64_t value = UINT64_MAX;
    FILE *file = fopen(path, "re");

    if (file != NULL) {
        if (fscanf(file, "%" SCNu64, &value) != 1) {
            value = UINT64_MAX;
        }
        (void)fclose(file);
    }
    return value;
}

/* The least limit of a control group and of those that it is in. `group` is "/a/b" and is used up.
 * In a container it may name what is not visible here; the root is then the container's own. */
static uint64_t read_group(const char *root, char *group, const char *file)
{
    uint64_t least = UINT64_MAX;

    for (;;) {
        char path[PATH_MAX];
        char *last;
        int n = snprintf(path, sizeof(path), "%s%s/%s", root, group, file);

        if (n > 0 && (size_t)n < sizeof(path)) {
            least = ddi_min_u64(least, read_limit(path));
        }
        last = strrchr(group, '/');
        if (last == NULL) {
            return least;
        }
        *last = '\0';
    }
}

/* What the control groups of this process allow. A line of the file is "4:cpu,memory:/a/b" for a
 * hierarchy of version 1 and "0::/a/b" for version 2. */
static uint64_t read_groups(void)
{
    uint64_t least = UINT64_MAX;
    char line[PATH_MAX];
    FILE *file = fopen("/proc/self/cgroup", "re");

    while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
        char *names = strchr(line, ':');
        char *group = names == NULL ? NULL : strchr(names + 1, ':');

        if (group == NULL) {
            continue;
        }
        *group++ = '\0';
        group[strcspn(group, "\n")] = '\0';
        if (names[1] == '\0') {
            least = ddi_min_u64(least, read_group(GROUPS, group, "memory.max"));
        } else if (strstr(names, "memory") != NULL) {
            least = ddi_min_u64(least,
                                read_group(GROUPS "/memory", group, "memory.limit_in_bytes"));
        }
    }
    if (file != NULL) {
        (void)fclose(file);
    }
    return least;
}

static uint64_t memory(void)
{
    long pages = sysconf(_SC_PHYS_PAGES);
    long page = sysconf(_SC_PAGESIZE);
    uint64_t machine = pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : UINT64_MAX;

    return ddi_min_u64(machine, read_groups());
}

const struct ddi_device_ops ddi_cpu_device = {.name = "cpu",
                                              .reserve = reserve,
                                              .commit = commit,
                                              .release = release,
                                              .copy = copy,
                                              .memory = memory};

/* Runs a fuzz target without a fuzzer: every file of the given folders as it is, then some thousand
 * mutations of them, always the same ones.
 *
 *     replay FOLDER ... */
#include <dirent.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_FILES 4096
#define MAX_BYTES 65536
#define MUTATIONS 20000 /* in all */
#define MAX_CHANGES 6

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct input {
    char path[512];
    uint8_t *bytes;
    size_t len;
};

static uint64_t next_random(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *state >> 33;
}

/* Read a file, cut at MAX_BYTES. */
static bool read_input(struct input *input)
{
    FILE *file = fopen(input->path, "rb");

    if (file == NULL) {
        perror(input->path);
        return false;
    }
    input->bytes = malloc(MAX_BYTES);
    if (input->bytes != NULL) {
        input->len = fread(input->bytes, 1, MAX_BYTES, file);
    }
    (void)fclose(file);
    return input->bytes != NULL;
}

static int compare_paths(const void *a, const void *b)
{
    const struct input *x = a;
    const struct input *y = b;

    return strcmp(x->path, y->path);
}

/* Read all files of a folder; false when there are none. */
static bool read_folder(const char *folder, struct input *inputs, size_t *count)
{
    DIR *dir = opendir(folder);
    struct dirent *entry;
    size_t before = *count;

    if (dir == NULL) {
        perror(folder);
        return false;
    }
    while ((entry = readdir(dir)) != NULL && *count < MAX_FILES) {
        struct input *input = &inputs[*count];

        if (entry->d_name[0] == '.') {
            continue;
        }
        (void)snprintf(input->path, sizeof(input->path), "%s/%s", folder, entry->d_name);
        if (!read_input(input)) {
            break;
        }
        (*count)++;
    }
    (void)closedir(dir);
    if (*count == before) {
        (void)fprintf(stderr, "%s: no input could be read\n", folder);
    }
    return *count > before;
}

/* Change an input a little: a bit, a byte, its end, or a piece of another input. */
static size_t mutate(uint8_t *bytes, size_t len, const struct input *other, uint64_t *state)
{
    static const uint8_t edges[] = {0x00, 0x01, 0x7F, 0x80, 0xFF};
    size_t at = len > 0 ? next_random(state) % len : 0;
    size_t from = other->len > 0 ? next_random(state) % other->len : 0;
    size_t n;

    switch (next_random(state) % 5) {
    case 0:
        if (len > 0) {
            bytes[at] ^= (uint8_t)(1U << next_random(state) % 8);
        }
        return len;
    case 1:
        if (len > 0) {
            bytes[at] = edges[next_random(state) % sizeof(edges)];
        }
        return len;
    case 2:
        return at; /* cut */
    case 3:
        n = next_random(state) % 9; /* grow */
        if (len + n > MAX_BYTES) {
            return len;
        }
        for (size_t i = 0; i < n; i++) {
            bytes[len + i] = (uint8_t)next_random(state);
        }
        return len + n;
    default:
        n = other->len - from; /* splice */
        if (at + n > MAX_BYTES) {
            return len;
        }
        (void)memcpy(bytes + at, other->bytes + from, n);
        return at + n > len ? at + n : len;
    }
}

static bool run_mutations(const struct input *inputs, size_t count)
{
    uint8_t *bytes = malloc(MAX_BYTES);
    uint64_t state = 1;

    if (bytes == NULL) {
        return false;
    }
    for (size_t i = 0; i < MUTATIONS; i++) {
        const struct input *base = &inputs[i % count];
        size_t changes = 1 + next_random(&state) % MAX_CHANGES;
        size_t len = base->len;

        (void)memcpy(bytes, base->bytes, len);
        for (size_t k = 0; k < changes; k++) {
            len = mutate(bytes, len, &inputs[next_random(&state) % count], &state);
        }
        (void)LLVMFuzzerTestOneInput(bytes, len);
    }
    free(bytes);
    return true;
}

int main(int argc, char **argv)
{
    struct input *inputs = calloc(MAX_FILES, sizeof(*inputs));
    size_t count = 0;
    bool is_good = inputs != NULL;

    if (argc < 2) {
        (void)fprintf(stderr, "usage: %s FOLDER ...\n", argv[0]);
        is_good = false;
    }
    for (int i = 1; i < argc && is_good; i++) {
        is_good = read_folder(argv[i], inputs, &count);
    }
    if (is_good) {
        qsort(inputs, count, sizeof(*inputs), compare_paths);
        for (size_t i = 0; i < count; i++) {
            (void)printf("%s\n", inputs[i].path);
            (void)fflush(stdout); /* the last line before a crash names the input */
            (void)LLVMFuzzerTestOneInput(inputs[i].bytes, inputs[i].len);
        }
        (void)printf("%d mutations\n", MUTATIONS);
        (void)fflush(stdout);
        is_good = run_mutations(inputs, count);
    }
    for (size_t i = 0; i < count; i++) {
        free(inputs[i].bytes);
    }
    free(inputs);
    if (is_good) {
        (void)printf("%zu inputs and %d mutations, 0 failures\n", count, MUTATIONS);
    }
    return is_good ? 0 : 1;
}

/* The hash map against a plain array, with keys that collide on purpose. */
#include "check.h"

#include "base/map.h"

#define KEYS 600

static struct ddi_map_key key_of(uint64_t i)
{
    return (struct ddi_map_key){.a = i % 7, .b = i / 7 % 11, .c = i};
}

TEST(a_new_map_has_nothing)
{
    struct ddi_map map;
    size_t at = 0;

    ddi_map_init(&map);
    EXPECT_TRUE(ddi_map_get(&map, key_of(1)) == NULL);
    EXPECT_TRUE(ddi_map_remove(&map, key_of(1)) == NULL);
    EXPECT_TRUE(ddi_map_next(&map, &at) == NULL);
    ddi_map_fini(&map);
}

TEST(a_second_put_replaces_the_first)
{
    struct ddi_map map;
    size_t at = 0;
    int values[2];

    ddi_map_init(&map);
    EXPECT_OK(ddi_map_put(&map, key_of(1), &values[0], NULL));
    EXPECT_OK(ddi_map_put(&map, key_of(1), &values[1], NULL));
    EXPECT_EQ(map.count, 1);
    EXPECT_TRUE(ddi_map_get(&map, key_of(1)) == &values[1]);
    EXPECT_TRUE(ddi_map_next(&map, &at) == &values[1]);
    EXPECT_TRUE(ddi_map_next(&map, &at) == NULL);
    EXPECT_TRUE(ddi_map_remove(&map, key_of(1)) == &values[1]);
    EXPECT_TRUE(ddi_map_get(&map, key_of(1)) == NULL);
    ddi_map_fini(&map);
}

TEST(every_part_of_the_key_counts)
{
    struct ddi_map map;
    int values[4];

    ddi_map_init(&map);
    EXPECT_OK(ddi_map_put(&map, (struct ddi_map_key){.a = 1}, &values[0], NULL));
    EXPECT_OK(ddi_map_put(&map, (struct ddi_map_key){.b = 1}, &values[1], NULL));
    EXPECT_OK(ddi_map_put(&map, (struct ddi_map_key){.c = 1}, &values[2], NULL));
    EXPECT_OK(ddi_map_put(&map, (struct ddi_map_key){.a = 0}, &values[3], NULL));
    EXPECT_EQ(map.count, 4);
    EXPECT_TRUE(ddi_map_get(&map, (struct ddi_map_key){.b = 1}) == &values[1]);
    EXPECT_TRUE(ddi_map_get(&map, (struct ddi_map_key){.a = 0}) == &values[3]);
    ddi_map_fini(&map);
}

TEST(random_puts_and_removes_agree_with_an_array)
{
    static uint64_t values[KEYS];
    static bool is_in[KEYS];
    struct ddi_map map;
    uint64_t random = 88172645463325252;
    size_t count = 0;
    size_t at = 0;
    size_t walked = 0;

    ddi_map_init(&map);
    for (int step = 0; step < 200000; step++) {
        uint64_t i;

        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        i = random % KEYS;
        if ((random >> 40) % 2 == 0) {
            EXPECT_OK(ddi_map_put(&map, key_of(i), &values[i], NULL));
            count += !is_in[i];
            is_in[i] = true;
        } else {
            void *removed = ddi_map_remove(&map, key_of(i));

            EXPECT_TRUE(removed == (is_in[i] ? &values[i] : NULL));
            count -= is_in[i];
            is_in[i] = false;
        }
        if (step % 1000 == 0) {
            for (uint64_t k = 0; k < KEYS; k++) {
                EXPECT_TRUE(ddi_map_get(&map, key_of(k)) == (is_in[k] ? &values[k] : NULL));
            }
        }
        EXPECT_EQ(map.count, count);
    }
    while (ddi_map_next(&map, &at) != NULL) {
        walked++;
    }
    EXPECT_EQ(walked, count);
    ddi_map_fini(&map);
}

CHECK_MAIN(RUN(a_new_map_has_nothing); RUN(a_second_put_replaces_the_first);
           RUN(every_part_of_the_key_counts); RUN(random_puts_and_removes_agree_with_an_array);)

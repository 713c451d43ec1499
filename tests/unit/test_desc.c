/* Cache descriptions and layer ranges: sizes, and what is refused. */
#include "model/desc.h"

#include "check.h"

static dd_cache_desc describe(const int64_t *dims, uint32_t dim_count)
{
    return (dd_cache_desc){.size = sizeof(dd_cache_desc),
                           .tensor_count = 4,
                           .data_type = DD_FLOAT16,
                           .placement = DD_DEVICE,
                           .dim_count = dim_count,
                           .dims = dims};
}

static void expect_refused(const dd_cache_desc *desc, const char *part)
{
    struct ddi_desc out = {.tensor_bytes = 77};
    dd_error err = {0};

    EXPECT_STATUS(ddi_desc_init(&out, desc, &err), DD_INVALID);
    EXPECT_CONTAINS(err.text, part);
    EXPECT_EQ(out.tensor_bytes, 77);
}

TEST(sizes_follow_from_shape_and_type)
{
    int64_t dims[] = {3, 5, 7};
    dd_cache_desc desc = describe(dims, 3);
    struct ddi_desc out;

    REQUIRE_OK(ddi_desc_init(&out, &desc, NULL));
    EXPECT_EQ(out.tensor_bytes, 210);
    EXPECT_EQ(out.slice_bytes, 70);
    EXPECT_EQ(out.tensor_count, 4);
    EXPECT_EQ(out.dim_count, 3);
    EXPECT_EQ(out.dims[2], 7);
    EXPECT_EQ(out.placement, DD_DEVICE);
}

TEST(every_data_type_has_its_size)
{
    EXPECT_EQ(ddi_desc_element_bytes(DD_FLOAT32), 4);
    EXPECT_EQ(ddi_desc_element_bytes(DD_FLOAT16), 2);
    EXPECT_EQ(ddi_desc_element_bytes(DD_INT8), 1);
    EXPECT_EQ(ddi_desc_element_bytes(DD_INT32), 4);
    EXPECT_EQ(ddi_desc_element_bytes(DD_UINT8), 1);
    EXPECT_EQ(ddi_desc_element_bytes(DD_INT16), 2);
    EXPECT_EQ(ddi_desc_element_bytes(DD_UINT16), 2);
    EXPECT_EQ(ddi_desc_element_bytes(DD_UINT32), 4);
    EXPECT_EQ(ddi_desc_element_bytes(DD_INT64), 8);
    EXPECT_EQ(ddi_desc_element_bytes(DD_UINT64), 8);
    EXPECT_EQ(ddi_desc_element_bytes(DD_FLOAT64), 8);
    EXPECT_EQ(ddi_desc_element_bytes(DD_BOOL), 1);
    EXPECT_EQ(ddi_desc_element_bytes(DD_STRING), 16);
    EXPECT_EQ(ddi_desc_element_bytes(DD_BFLOAT16), 2);
    EXPECT_EQ(ddi_desc_element_bytes((dd_data_type)5), 0);
    EXPECT_EQ(ddi_desc_element_bytes((dd_data_type)28), 0);
}

TEST(bad_fields_are_named)
{
    int64_t dims[DD_MAX_DIMS + 1] = {2, 2};
    dd_cache_desc good = describe(dims, 2);
    dd_cache_desc desc = good;

    expect_refused(NULL, "NULL");
    desc.size = 8;
    expect_refused(&desc, "size is 8");
    desc = good;
    desc.tensor_count = 0;
    expect_refused(&desc, "tensor_count is 0");
    desc = good;
    desc.data_type = (dd_data_type)5;
    expect_refused(&desc, "data_type 5");
    desc = good;
    desc.placement = (dd_placement)2;
    expect_refused(&desc, "placement is 2");
    desc = good;
    desc.dim_count = 0;
    expect_refused(&desc, "dim_count is 0");
    desc.dim_count = DD_MAX_DIMS + 1;
    expect_refused(&desc, "dim_count is 32, allowed are 1 to 31");
    desc = good;
    desc.dims = NULL;
    expect_refused(&desc, "dims is NULL");
}

TEST(dimensions_below_one_are_refused)
{
    int64_t dims[] = {2, 0};
    dd_cache_desc desc = describe(dims, 2);

    expect_refused(&desc, "dims[1] is 0");
    dims[1] = -1;
    expect_refused(&desc, "dims[1] is -1");
    dims[1] = INT64_MIN;
    expect_refused(&desc, "dims[1] is -9223372036854775808");
}

TEST(sizes_that_overflow_are_refused)
{
    int64_t dims[] = {INT64_C(1) << 32, INT64_C(1) << 32};
    dd_cache_desc desc = describe(dims, 2);

    expect_refused(&desc, "64 bits");
    dims[1] = INT64_C(1) << 28; /* 2^61 bytes a tensor, 4 tensors */
    expect_refused(&desc, "63 bits");
    desc.tensor_count = 3;
    EXPECT_OK(ddi_desc_init(&(struct ddi_desc){0}, &desc, NULL));
}

struct layers_result {
    dd_status st;
    uint32_t first;
    uint32_t count;
    dd_error err;
};

static struct layers_result layers(uint32_t tensors, uint32_t per_layer, uint32_t first,
                                   uint32_t count)
{
    struct layers_result r = {0};

    r.st = ddi_desc_layers(tensors, per_layer, (dd_layers){first, count}, "source", &r.first,
                           &r.count, &r.err);
    return r;
}

TEST(no_range_selects_all_tensors)
{
    struct layers_result r = layers(7, 0, 0, 0);

    EXPECT_OK(r.st);
    EXPECT_EQ(r.first, 0);
    EXPECT_EQ(r.count, 7);
    r = layers(1, 0, 0, 0); /* the default of 2 is no demand */
    EXPECT_OK(r.st);
    EXPECT_EQ(r.count, 1);
    r = layers(7, 3, 0, 0); /* not a multiple, but no range asks for layers */
    EXPECT_OK(r.st);
    EXPECT_EQ(r.count, 7);
}

TEST(range_of_layers_is_a_range_of_tensors)
{
    struct layers_result r = layers(32, 0, 8, 8);

    EXPECT_OK(r.st);
    EXPECT_EQ(r.first, 16);
    EXPECT_EQ(r.count, 16);
    r = layers(9, 3, 2, 1);
    EXPECT_OK(r.st);
    EXPECT_EQ(r.first, 6);
    EXPECT_EQ(r.count, 3);
    r = layers(5, 1, 0, 5);
    EXPECT_OK(r.st);
    EXPECT_EQ(r.count, 5);
}

TEST(more_tensors_per_layer_than_tensors_are_refused_with_and_without_a_range)
{
    struct layers_result r = layers(4, 5, 0, 0);

    EXPECT_STATUS(r.st, DD_INVALID);
    EXPECT_CONTAINS(r.err.text, "source: 5 tensors per layer");
    EXPECT_CONTAINS(r.err.text, "4 tensors");
    EXPECT_STATUS(layers(4, 5, 0, 1).st, DD_INVALID);
    EXPECT_OK(layers(4, 4, 0, 1).st);
}

TEST(tensors_that_are_no_multiple_are_refused_with_a_range)
{
    struct layers_result r = layers(1, 0, 0, 1);

    EXPECT_STATUS(r.st, DD_INVALID);
    EXPECT_CONTAINS(r.err.text, "1 tensors are not a multiple of 2");
    EXPECT_STATUS(layers(7, 3, 0, 1).st, DD_INVALID);
}

TEST(ranges_outside_are_refused)
{
    struct layers_result r = layers(16, 2, 7, 2);

    EXPECT_STATUS(r.st, DD_INVALID);
    EXPECT_CONTAINS(r.err.text, "2 layers from layer 7");
    EXPECT_CONTAINS(r.err.text, "has 8 layers");
    EXPECT_STATUS(layers(16, 2, 8, 1).st, DD_INVALID);
    EXPECT_STATUS(layers(16, 2, UINT32_MAX, UINT32_MAX).st, DD_INVALID);
    EXPECT_STATUS(layers(16, 2, 1, UINT32_MAX).st, DD_INVALID);
    EXPECT_STATUS(layers(16, 2, 3, 0).st, DD_INVALID); /* a start without a length */
}

CHECK_MAIN(RUN(sizes_follow_from_shape_and_type); RUN(every_data_type_has_its_size);
           RUN(bad_fields_are_named); RUN(dimensions_below_one_are_refused);
           RUN(sizes_that_overflow_are_refused); RUN(no_range_selects_all_tensors);
           RUN(range_of_layers_is_a_range_of_tensors);
           RUN(more_tensors_per_layer_than_tensors_are_refused_with_and_without_a_range);
           RUN(tensors_that_are_no_multiple_are_refused_with_a_range);
           RUN(ranges_outside_are_refused);)

#include "tap.h"

#include <stdint.h>
#include <string.h>

#include "ring_buffer.h"

enum { CAPACITY = 4, GUARD = 8 };

/* Storage with guard bytes on both sides. */
static unsigned char memory[GUARD + CAPACITY + GUARD];
static struct ring_buffer rb;

static void setup(void)
{
    memset(memory, 0xA5, sizeof memory);
    ring_init(&rb, memory + GUARD, CAPACITY);
}

static int guards_intact(void)
{
    int i;

    for (i = 0; i < GUARD; i++)
        if (memory[i] != 0xA5 || memory[GUARD + CAPACITY + i] != 0xA5)
            return 0;
    return 1;
}

/* An empty buffer whose next byte goes to this index of the storage. */
static void setup_at(int index)
{
    unsigned char byte;

    setup();
    while (index-- > 0)
        CHECK(ring_put(&rb, 0) && ring_get(&rb, &byte));
}

static void first_in_first_out(void)
{
    unsigned char byte;

    setup();
    CHECK(ring_put(&rb, 'a') && ring_put(&rb, 'b'));
    CHECK(ring_get(&rb, &byte) && byte == 'a');
    CHECK(ring_get(&rb, &byte) && byte == 'b');
    CHECK(!ring_get(&rb, &byte));
}

static void full_buffer(void)
{
    int i;

    setup();
    for (i = 0; i < CAPACITY; i++)
        CHECK(ring_space(&rb) == (size_t)(CAPACITY - i) && ring_put(&rb, 'a'));
    CHECK(!ring_put(&rb, 'b'));
    CHECK(ring_count(&rb) == CAPACITY && ring_space(&rb) == 0);
    CHECK(guards_intact());
}

static void empty_buffer(void)
{
    unsigned char byte = 'x';

    setup();
    CHECK(!ring_get(&rb, &byte) && byte == 'x');
    CHECK(ring_read(&rb, &byte, 1) == 0 && byte == 'x');
    CHECK(ring_count(&rb) == 0);
}

static void blocks_that_fit_in_part(void)
{
    char out[8];

    setup();
    CHECK(ring_write(&rb, "abcdef", 6) == 4);
    CHECK(ring_write(&rb, "g", 1) == 0);
    CHECK(ring_read(&rb, out, sizeof out) == 4);
    CHECK(memcmp(out, "abcd", 4) == 0);
}

static void blocks_of_nothing(void)
{
    setup();
    CHECK(ring_write(&rb, "", 0) == 0);
    CHECK(ring_read(&rb, memory, 0) == 0);
    CHECK(ring_count(&rb) == 0 && guards_intact());
}

static void guards_with_single_bytes(void)
{
    unsigned char byte;
    int i;

    setup();
    for (i = 0; i < 10 * CAPACITY; i++)
        CHECK(ring_put(&rb, (unsigned char)i) && ring_get(&rb, &byte) && byte == i);
    CHECK(guards_intact());
}

static void all_of_the_storage_is_used(void)
{
    int start, i;

    for (start = 0; start < 2 * CAPACITY; start++) {
        setup_at(start);
        for (i = 0; i < CAPACITY; i++)
            CHECK(ring_put(&rb, (unsigned char)('a' + i)));
        for (i = 0; i < CAPACITY; i++)
            CHECK(memory[GUARD + (start + i) % CAPACITY] == 'a' + i);
        CHECK(guards_intact());
    }
}

static void capacity_of_one(void)
{
    unsigned char cells[3] = {0xA5, 0, 0xA5}, byte;
    int i;

    ring_init(&rb, cells + 1, 1);
    for (i = 0; i < 5; i++) {
        CHECK(ring_put(&rb, (unsigned char)i) && !ring_put(&rb, 9));
        CHECK(ring_get(&rb, &byte) && byte == i);
    }
    CHECK(cells[0] == 0xA5 && cells[2] == 0xA5);
}

static void block_in_single_bytes_out(void)
{
    unsigned char byte;
    int start, i;

    for (start = 0; start < 2 * CAPACITY; start++) {
        setup_at(start);
        CHECK(ring_write(&rb, "abcd", 4) == 4);
        for (i = 0; i < 4; i++)
            CHECK(ring_get(&rb, &byte) && byte == 'a' + i);
        CHECK(guards_intact());
    }
}

static void single_bytes_in_block_out(void)
{
    char out[4];
    int start, i;

    for (start = 0; start < 2 * CAPACITY; start++) {
        setup_at(start);
        for (i = 0; i < 3; i++)
            CHECK(ring_put(&rb, (unsigned char)('a' + i)));
        CHECK(ring_read(&rb, out, sizeof out) == 3 && memcmp(out, "abc", 3) == 0);
        CHECK(guards_intact());
    }
}

static void blocks_across_the_end(void)
{
    char out[4];
    int i;

    setup();
    for (i = 0; i < 20; i++) {
        CHECK(ring_write(&rb, "xyz", 3) == 3);
        CHECK(ring_read(&rb, out, sizeof out) == 3 && memcmp(out, "xyz", 3) == 0);
    }
    CHECK(guards_intact());
}

static void peek_in_order(void)
{
    unsigned char byte;

    setup();
    CHECK(ring_write(&rb, "abc", 3) == 3);
    CHECK(ring_peek(&rb, 0, &byte) && byte == 'a');
    CHECK(ring_peek(&rb, 2, &byte) && byte == 'c');
    CHECK(ring_count(&rb) == 3);
}

static void peek_across_the_end(void)
{
    unsigned char byte;
    size_t i;

    setup_at(CAPACITY - 1);
    CHECK(ring_write(&rb, "abcd", 4) == 4);
    for (i = 0; i < 4; i++)
        CHECK(ring_peek(&rb, i, &byte) && byte == 'a' + i);
}

static void peek_past_the_last_byte(void)
{
    unsigned char byte = 'x';

    setup();
    CHECK(!ring_peek(&rb, 0, &byte));
    CHECK(ring_put(&rb, 'a') && ring_put(&rb, 'b'));
    CHECK(!ring_peek(&rb, 2, &byte) && !ring_peek(&rb, 3, &byte) && !ring_peek(&rb, SIZE_MAX, &byte));
    CHECK(byte == 'x');
}

/* The same random traffic on the buffer and on a plain array. */
static void random_traffic(void)
{
    unsigned char model[CAPACITY], in[2 * CAPACITY], out[2 * CAPACITY], byte;
    uint32_t seed = 12345;
    unsigned char next = 0;
    size_t used = 0, length, moved, i;
    int step;

    setup();
    for (step = 0; step < 20000; step++) {
        seed = seed * 1664525u + 1013904223u;
        length = (seed >> 20) % (2 * CAPACITY + 1);
        moved = 0;
        switch (seed >> 30) {
        case 0:
            for (i = 0; i < length; i++)
                in[i] = next++;
            moved = length < CAPACITY - used ? length : CAPACITY - used;
            CHECK(ring_write(&rb, in, length) == moved);
            memcpy(model + used, in, moved);
            used += moved;
            moved = 0;
            break;
        case 1:
            moved = length < used ? length : used;
            CHECK(ring_read(&rb, out, length) == moved);
            CHECK(memcmp(out, model, moved) == 0);
            break;
        case 2:
            CHECK(ring_put(&rb, next) == (used < CAPACITY));
            if (used < CAPACITY)
                model[used++] = next++;
            break;
        default:
            CHECK(ring_get(&rb, &byte) == (used > 0));
            if (used > 0) {
                CHECK(byte == model[0]);
                moved = 1;
            }
        }
        memmove(model, model + moved, used - moved);
        used -= moved;
        CHECK(ring_count(&rb) == used && ring_space(&rb) == CAPACITY - used);
        CHECK(guards_intact());
    }
}

int main(int argc, char **argv)
{
    begin(argc, argv);
    test("first in, first out", first_in_first_out);
    test("a full buffer takes no more", full_buffer);
    test("an empty buffer gives nothing", empty_buffer);
    test("blocks are written as far as they fit", blocks_that_fit_in_part);
    test("blocks of no bytes change nothing", blocks_of_nothing);
    test("peek sees the bytes in order", peek_in_order);
    test("single bytes stay inside the storage", guards_with_single_bytes);
    test("all of the storage is used, in order", all_of_the_storage_is_used);
    test("a capacity of one works", capacity_of_one);
    test("a block comes out as single bytes", block_in_single_bytes_out);
    test("single bytes come out as a block", single_bytes_in_block_out);
    test("blocks cross the end of the storage", blocks_across_the_end);
    test("peek crosses the end of the storage", peek_across_the_end);
    test("peek refuses what is past the last byte", peek_past_the_last_byte);
    test("random traffic matches a model", random_traffic);
    return finish();
}

#include "tap.h"

#include <string.h>

#include "ring_buffer.h"

static void first_in_first_out(void)
{
    unsigned char storage[4], byte;
    struct ring_buffer rb;

    ring_init(&rb, storage, sizeof storage);
    CHECK(ring_put(&rb, 'a') && ring_put(&rb, 'b'));
    CHECK(ring_get(&rb, &byte) && byte == 'a');
    CHECK(ring_get(&rb, &byte) && byte == 'b');
    CHECK(!ring_get(&rb, &byte));
}

static void full_buffer(void)
{
    unsigned char storage[2];
    struct ring_buffer rb;

    ring_init(&rb, storage, sizeof storage);
    CHECK(ring_put(&rb, 'a') && ring_put(&rb, 'b'));
    CHECK(!ring_put(&rb, 'c'));
    CHECK(ring_count(&rb) == 2 && ring_space(&rb) == 0);
}

static void blocks(void)
{
    unsigned char storage[8];
    char out[8];
    struct ring_buffer rb;

    ring_init(&rb, storage, sizeof storage);
    CHECK(ring_write(&rb, "hello", 5) == 5);
    CHECK(ring_write(&rb, "world", 5) == 3);
    CHECK(ring_read(&rb, out, sizeof out) == 8);
    CHECK(memcmp(out, "hellowor", 8) == 0);
}

int main(int argc, char **argv)
{
    begin(argc, argv);
    test("first in, first out", first_in_first_out);
    test("a full buffer takes no more", full_buffer);
    test("blocks are written as far as they fit", blocks);
    return finish();
}

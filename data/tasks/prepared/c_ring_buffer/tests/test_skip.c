#include "tap.h"

#include <stdint.h>
#include <string.h>

#include "ring_buffer.h"

static unsigned char storage[4];
static struct ring_buffer rb;

static void drops_the_oldest(void)
{
    unsigned char byte;

    ring_init(&rb, storage, sizeof storage);
    CHECK(ring_write(&rb, "abcd", 4) == 4);
    CHECK(ring_skip(&rb, 3) == 3);
    CHECK(ring_count(&rb) == 1 && ring_space(&rb) == 3);
    CHECK(ring_get(&rb, &byte) && byte == 'd');
}

static void drops_what_is_there(void)
{
    ring_init(&rb, storage, sizeof storage);
    CHECK(ring_skip(&rb, 1) == 0);
    CHECK(ring_write(&rb, "abc", 3) == 3);
    CHECK(ring_skip(&rb, 0) == 0 && ring_count(&rb) == 3);
    CHECK(ring_skip(&rb, SIZE_MAX) == 3 && ring_count(&rb) == 0);
    CHECK(ring_write(&rb, "wxyz", 4) == 4);
}

static void crosses_the_end(void)
{
    char out[4];
    int i;

    ring_init(&rb, storage, sizeof storage);
    CHECK(ring_put(&rb, 0));
    for (i = 0; i < 20; i++) {
        CHECK(ring_write(&rb, "xyz", 3) == 3);
        CHECK(ring_skip(&rb, 3) == 3);
        CHECK(ring_peek(&rb, 0, (unsigned char *)out) && out[0] == 'z');
    }
    CHECK(ring_write(&rb, "abc", 3) == 3);
    CHECK(ring_read(&rb, out, sizeof out) == 4 && memcmp(out, "zabc", 4) == 0);
}

int main(int argc, char **argv)
{
    begin(argc, argv);
    test("skip drops the oldest bytes", drops_the_oldest);
    test("skip drops no more than there is", drops_what_is_there);
    test("skip crosses the end of the storage", crosses_the_end);
    return finish();
}

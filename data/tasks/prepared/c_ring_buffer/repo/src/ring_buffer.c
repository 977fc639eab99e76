#include "ring_buffer.h"

#include <string.h>

static size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Bring an index that went past the end back to the beginning. */
static size_t wrap(const struct ring_buffer *rb, size_t index)
{
    return index > rb->capacity ? index - rb->capacity : index;
}

void ring_init(struct ring_buffer *rb, unsigned char *storage, size_t capacity)
{
    rb->data = storage;
    rb->capacity = capacity;
    rb->head = 0;
    rb->tail = 0;
    rb->count = 0;
}

size_t ring_count(const struct ring_buffer *rb)
{
    return rb->count;
}

size_t ring_space(const struct ring_buffer *rb)
{
    return rb->capacity - rb->count;
}

bool ring_put(struct ring_buffer *rb, unsigned char byte)
{
    if (rb->count == rb->capacity)
        return false;
    rb->data[rb->head] = byte;
    rb->head = wrap(rb, rb->head + 1);
    rb->count++;
    return true;
}

bool ring_get(struct ring_buffer *rb, unsigned char *byte)
{
    if (rb->count == 0)
        return false;
    *byte = rb->data[rb->tail];
    rb->tail = wrap(rb, rb->tail + 1);
    rb->count--;
    return true;
}

bool ring_peek(const struct ring_buffer *rb, size_t offset, unsigned char *byte)
{
    if (offset > rb->count)
        return false;
    *byte = rb->data[wrap(rb, rb->tail + offset)];
    return true;
}

size_t ring_write(struct ring_buffer *rb, const void *bytes, size_t length)
{
    const unsigned char *from = bytes;
    size_t first;

    length = min_size(length, ring_space(rb));
    first = min_size(length, rb->capacity - rb->head);
    memcpy(rb->data + rb->head, from, first);
    memcpy(rb->data, from + first, length - first);
    rb->head = wrap(rb, rb->head + length);
    rb->count += length;
    return length;
}

size_t ring_read(struct ring_buffer *rb, void *bytes, size_t length)
{
    unsigned char *to = bytes;
    size_t first;

    length = min_size(length, rb->count);
    first = min_size(length, rb->capacity - rb->tail);
    memcpy(to, rb->data + rb->tail, first);
    memcpy(to + first, rb->data, length - first);
    rb->tail = wrap(rb, rb->tail + length);
    rb->count -= length;
    return length;
}

#ifndef RING_BUFFER_H
#define RING_BUFFER_H

#include <stdbool.h>
#include <stddef.h>

/* A queue of bytes over storage that the caller owns. The members are not for users. */
struct ring_buffer {
    unsigned char *data;
    size_t capacity;
    size_t head;  /* where the next byte is written */
    size_t tail;  /* where the next byte is read */
    size_t count; /* how many bytes are in the queue */
};

/* Make an empty queue over `capacity` bytes of storage; at least one. */
void ring_init(struct ring_buffer *rb, unsigned char *storage, size_t capacity);

/* How many bytes can be read, and how many more can be written. */
size_t ring_count(const struct ring_buffer *rb);
size_t ring_space(const struct ring_buffer *rb);

/* Add one byte. False, and nothing happens, when the queue is full. */
bool ring_put(struct ring_buffer *rb, unsigned char byte);

/* Take the oldest byte. False, and nothing happens, when the queue is empty. */
bool ring_get(struct ring_buffer *rb, unsigned char *byte);

/* Look at the byte that the `offset`-th next ring_get would return, from 0. False when there is none. */
bool ring_peek(const struct ring_buffer *rb, size_t offset, unsigned char *byte);

/* Add as many of `length` bytes as fit, and return how many that were. */
size_t ring_write(struct ring_buffer *rb, const void *bytes, size_t length);

/* Take up to `length` of the oldest bytes, and return how many that were. */
size_t ring_read(struct ring_buffer *rb, void *bytes, size_t length);

#endif

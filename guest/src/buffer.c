#include "buffer.h"

#include <stdlib.h>
#include <string.h>

#include "util.h"

uint8_t *buffer_reserve(struct buffer *buffer, size_t room) {
  if (buffer->capacity - buffer->end >= room) return buffer->data + buffer->end;
  size_t length = buffer_length(buffer);
  if (buffer->start > 0) {
    memmove(buffer->data, buffer->data + buffer->start, length);
    buffer->start = 0;
    buffer->end = length;
  }
  if (buffer->capacity < length + room) {
    size_t capacity = buffer->capacity > 0 ? buffer->capacity : 256;
    while (capacity < length + room) capacity *= 2;
    buffer->data = must_realloc(buffer->data, capacity);
    buffer->capacity = capacity;
  }
  return buffer->data + buffer->end;
}

void buffer_append(struct buffer *buffer, const void *bytes, size_t length) {
  if (length == 0) return;
  memcpy(buffer_reserve(buffer, length), bytes, length);
  buffer->end += length;
}

void buffer_consume(struct buffer *buffer, size_t length) {
  buffer->start += length;
  if (buffer->start == buffer->end) buffer_clear(buffer);
}

void buffer_clear(struct buffer *buffer) {
  buffer->start = buffer->end = 0;
  if (buffer->capacity > BUFFER_KEEP) buffer_free(buffer);
}

void buffer_free(struct buffer *buffer) {
  free(buffer->data);
  memset(buffer, 0, sizeof *buffer);
}

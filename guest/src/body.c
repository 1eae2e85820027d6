#include "body.h"

#include <string.h>

#include "protocol.gen.h"
#include "util.h"

const uint8_t *take_bytes(struct reader *reader, size_t length) {
  if (reader->failed || (size_t)(reader->end - reader->at) < length) {
    reader->failed = true;
    return NULL;
  }
  const uint8_t *at = reader->at;
  reader->at += length;
  return at;
}

static uint64_t take_integer(struct reader *reader, size_t width) {
  const uint8_t *at = take_bytes(reader, width);
  uint64_t value = 0;
  for (size_t i = width; at != NULL && i > 0; i--) value = value << 8 | at[i - 1];
  return value;
}

uint8_t take_u8(struct reader *reader) { return (uint8_t)take_integer(reader, 1); }
uint16_t take_u16(struct reader *reader) { return (uint16_t)take_integer(reader, 2); }
uint32_t take_u32(struct reader *reader) { return (uint32_t)take_integer(reader, 4); }
uint64_t take_u64(struct reader *reader) { return take_integer(reader, 8); }

struct span take_span(struct reader *reader) {
  uint32_t length = take_u32(reader);
  const uint8_t *data = take_bytes(reader, length);
  return (struct span){.data = data, .length = data != NULL ? length : 0};
}

char *take_string(struct reader *reader) {
  struct span span = take_span(reader);
  char *text = must_alloc((size_t)span.length + 1);
  if (span.length > 0) memcpy(text, span.data, span.length);
  return text;
}

char **take_strings(struct reader *reader) {
  uint32_t count = take_u32(reader);
  /* Each item has at least its length field: a count beyond that is a lie and must not size an allocation. */
  if (count > (size_t)(reader->end - reader->at) / 4) {
    reader->failed = true;
    count = 0;
  }
  char **strings = must_alloc(((size_t)count + 1) * sizeof *strings);
  for (uint32_t i = 0; i < count; i++) strings[i] = take_string(reader);
  return strings;
}

/* Where the list that begins at `[` ends. */
static const char *list_end(const char *format) {
  int depth = 0;
  for (;; format++) {
    if (*format == '[') depth++;
    if (*format == ']' && --depth == 0) return format;
  }
}

static void match(struct reader *reader, const char *format, const char *format_end) {
  for (; format < format_end && !reader->failed; format++) {
    switch (*format) {
      case 'b': take_bytes(reader, 1); break;
      case 'w': take_bytes(reader, 2); break;
      case 'u':
      case 'i': take_bytes(reader, 4); break;
      case 'q':
      case 'l': take_bytes(reader, 8); break;
      case 'k': take_bytes(reader, 16); break;
      case 'y': take_span(reader); break;
      case '?':
        if (take_u8(reader) > 1) reader->failed = true;
        break;
      case 's': {
        struct span text = take_span(reader);
        if (text.length > 0 && memchr(text.data, '\0', text.length) != NULL) reader->failed = true;
        break;
      }
      case '[': {
        const char *end = list_end(format);
        uint32_t count = take_u32(reader);
        /* Every item takes at least one byte, so a lying count ends by running out of body. */
        for (uint32_t i = 0; i < count && !reader->failed; i++) match(reader, format + 1, end);
        format = end;
        break;
      }
      default: reader->failed = true;
    }
  }
}

bool body_matches(const char *format, const uint8_t *body, size_t length) {
  struct reader reader = reader_of(body, length);
  match(&reader, format, format + strlen(format));
  return !reader.failed && reader.at == reader.end;
}

const char *request_format(uint16_t op) {
  switch (op) {
#define OPERATION(NAME, number, name, request, response) \
  case number: return request;
    PROTOCOL_OPERATIONS(OPERATION)
#undef OPERATION
    default: return NULL;
  }
}

static void put_integer(struct buffer *buffer, uint64_t value, size_t width) {
  uint8_t *at = buffer_reserve(buffer, width);
  for (size_t i = 0; i < width; i++) at[i] = (uint8_t)(value >> (8 * i));
  buffer->end += width;
}

void put_u8(struct buffer *buffer, uint8_t value) { put_integer(buffer, value, 1); }
void put_u16(struct buffer *buffer, uint16_t value) { put_integer(buffer, value, 2); }
void put_u32(struct buffer *buffer, uint32_t value) { put_integer(buffer, value, 4); }
void put_u64(struct buffer *buffer, uint64_t value) { put_integer(buffer, value, 8); }

void put_bytes(struct buffer *buffer, const void *data, size_t length) {
  put_u32(buffer, (uint32_t)length);
  buffer_append(buffer, data, length);
}

void put_string(struct buffer *buffer, const char *text) { put_bytes(buffer, text, strlen(text)); }

void patch_u32(struct buffer *buffer, size_t offset, uint32_t value) {
  store_u32(buffer_head(buffer) + offset, value);
}

uint32_t load_u32(const uint8_t *at) {
  return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

void store_u32(uint8_t *at, uint32_t value) {
  for (int i = 0; i < 4; i++) at[i] = (uint8_t)(value >> (8 * i));
}

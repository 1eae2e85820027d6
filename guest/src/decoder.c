#define _GNU_SOURCE /* memmem */
#include "decoder.h"

#include <stdlib.h>
#include <string.h>

#include "body.h"
#include "protocol.gen.h"
#include "util.h"

#define USUAL_CAPACITY (2 * DECODER_READ)

static const uint8_t no_key[KEY_SIZE];

void decoder_open(struct decoder *decoder) {
  memset(decoder, 0, sizeof *decoder);
  decoder->capacity = USUAL_CAPACITY;
  decoder->data = must_alloc(decoder->capacity);
}

void decoder_close(struct decoder *decoder) {
  free(decoder->data);
  memset(decoder, 0, sizeof *decoder);
}

/* Random bytes hardly ever contain more than two zeros; the lengths and padding in ordinary bodies do. */
static bool looks_random(const uint8_t *nonce) {
  int zeros = 0;
  for (size_t i = 0; i < NONCE_SIZE; i++) zeros += nonce[i] == 0;
  return zeros <= 2;
}

/* Whether the key found at an offset is the one in the body of an activate, which may name the present key again. Behind it
 * comes the length of a short text there, and random bytes in a record. */
static bool is_activation(const struct decoder *decoder, size_t at) {
  const size_t before = FRAME_HEADER + 2 + 4; /* header, op, deadline */
  if (!decoder->synced || at < decoder->start + before) return false;
  const uint8_t *header = decoder->data + at - before;
  uint32_t op = (uint32_t)header[FRAME_HEADER] | (uint32_t)header[FRAME_HEADER + 1] << 8;
  return header[8] == FRAME_REQUEST && op == OP_ACTIVATE && !looks_random(decoder->data + at + KEY_SIZE);
}

/* In a run of zero bytes the key is the last 16 of them: what precedes the record may end with zeros, a nonce has none. */
static size_t last_zeros(const struct decoder *decoder, size_t at) {
  while (at + KEY_SIZE < decoder->end && decoder->data[at + KEY_SIZE] == 0) at++;
  return at;
}

/* Looks for the key in bytes not searched before; the last complete record wins. */
static void scan(struct decoder *decoder) {
  decoder->key_open = false;
  /* A guest without a key looks for 16 zero bytes, which ordinary frames contain too: see unkeyed_record. */
  if (!decoder->keyed && decoder->synced) return;
  while (decoder->end - decoder->scanned >= KEY_SIZE) {
    const uint8_t *from = decoder->data + decoder->scanned;
    const uint8_t *found = memmem(from, decoder->end - decoder->scanned, decoder->key, KEY_SIZE);
    if (found == NULL) {
      decoder->scanned = decoder->end - (KEY_SIZE - 1);
      return;
    }
    decoder->scanned = (size_t)(found - decoder->data);
    if (!decoder->keyed) decoder->scanned = last_zeros(decoder, decoder->scanned);
    if (decoder->end - decoder->scanned < RECORD_SIZE) {
      decoder->key_open = true;
      return;
    }
    bool doubtful = !decoder->keyed && !looks_random(decoder->data + decoder->scanned + KEY_SIZE);
    if (doubtful || is_activation(decoder, decoder->scanned)) {
      decoder->scanned++;
      continue;
    }
    memcpy(decoder->nonce, decoder->data + decoder->scanned + KEY_SIZE, NONCE_SIZE);
    decoder->record_found = true;
    decoder->record_end = decoder->scanned + RECORD_SIZE;
    /* The search goes on inside the record: a host that died before its nonce was complete leaves a key whose "nonce" is the
     * beginning of the next record. Zero bytes overlap with themselves, so without a key there is only the first one. */
    decoder->scanned += decoder->keyed ? 1 : RECORD_SIZE;
    if (!decoder->keyed) return;
  }
}

uint8_t *decoder_room(struct decoder *decoder) {
  size_t keep = minimum(decoder->start, decoder->scanned);
  size_t needed = decoder->end - keep + DECODER_READ;
  bool shrink = decoder->capacity > USUAL_CAPACITY && needed <= USUAL_CAPACITY;
  if (decoder->capacity - decoder->end < DECODER_READ || shrink) {
    memmove(decoder->data, decoder->data + keep, decoder->end - keep);
    decoder->start -= keep;
    decoder->end -= keep;
    decoder->scanned -= keep;
    if (decoder->record_found) decoder->record_end -= keep;
    /* The content is at most one unfinished frame, so the growth is bounded by MAX_CONTROL. */
    if (decoder->capacity < needed || shrink) {
      decoder->capacity = shrink ? USUAL_CAPACITY : needed + needed / 2;
      decoder->data = must_realloc(decoder->data, decoder->capacity);
    }
  }
  return decoder->data + decoder->end;
}

void decoder_filled(struct decoder *decoder, size_t length) {
  decoder->end += length;
  scan(decoder);
}

void decoder_reset(struct decoder *decoder) {
  decoder->start = decoder->end = decoder->scanned = 0;
  decoder->synced = decoder->key_open = decoder->record_found = false;
}

void decoder_lose_sync(struct decoder *decoder) {
  decoder->synced = false;
  if (!decoder->keyed) decoder->scanned = decoder->start;
  scan(decoder);
}

void decoder_set_key(struct decoder *decoder, const uint8_t key[KEY_SIZE]) {
  memcpy(decoder->key, key, KEY_SIZE);
  decoder->keyed = memcmp(key, no_key, KEY_SIZE) != 0;
  decoder->scanned = decoder->start;
  scan(decoder);
}

static bool valid_header(uint32_t stream, uint8_t type, uint32_t length) {
  switch (type) {
    case FRAME_DATA: return stream != 0 && length <= MAX_DATA;
    case FRAME_EOF: return stream != 0 && length == 0;
    case FRAME_CREDIT: return length == 4;
    case FRAME_RESET: return stream != 0 && length == 4;
    case FRAME_REQUEST: return stream != 0 && length >= 6 && length <= MAX_CONTROL;
    default: return false;
  }
}

/*
 * Before the first activate the key is 16 zero bytes, and those occur in ordinary bodies. In sync they count as a key only
 * where they cannot be anything else: in place of a frame header (an empty DATA frame of stream 0 does not exist), or at the
 * end of what was received while a frame is unfinished.
 */
static bool unkeyed_record(struct decoder *decoder, size_t available, bool frame_unfinished) {
  if (available < RECORD_SIZE) return false;
  const uint8_t *at = decoder->data + (frame_unfinished ? decoder->end - RECORD_SIZE : decoder->start);
  if (memcmp(at, no_key, KEY_SIZE) != 0) return false;
  if (frame_unfinished && !looks_random(at + KEY_SIZE)) return false;
  memcpy(decoder->nonce, at + KEY_SIZE, NONCE_SIZE);
  decoder->record_end = (size_t)(at - decoder->data) + RECORD_SIZE;
  decoder->record_found = true;
  return true;
}

static enum decoded accept_record(struct decoder *decoder) {
  decoder->record_found = false;
  decoder->synced = true;
  decoder->start = decoder->record_end;
  return DECODED_RESYNC;
}

enum decoded decoder_next(struct decoder *decoder, struct frame *frame) {
  if (decoder->record_found) return accept_record(decoder);
  if (!decoder->synced) {
    decoder->start = decoder->end;
    return DECODED_NOTHING;
  }
  if (!decoder->keyed) decoder->scanned = decoder->end;
  size_t available = decoder->end - decoder->start;
  if (decoder->key_open || available < FRAME_HEADER) return DECODED_NOTHING;
  const uint8_t *header = decoder->data + decoder->start;
  if (!decoder->keyed && memcmp(header, no_key, FRAME_HEADER) == 0) {
    if (unkeyed_record(decoder, available, false)) return accept_record(decoder);
    if (available < RECORD_SIZE) return DECODED_NOTHING;
  }
  uint32_t length = load_u32(header);
  frame->stream = load_u32(header + 4);
  frame->type = header[8];
  if (!valid_header(frame->stream, frame->type, length)) {
    decoder_lose_sync(decoder);
    return decoder_next(decoder, frame);
  }
  if (available - FRAME_HEADER < length) {
    if (!decoder->keyed && unkeyed_record(decoder, available, true)) return accept_record(decoder);
    return DECODED_NOTHING;
  }
  frame->payload = header + FRAME_HEADER;
  frame->length = length;
  decoder->start += FRAME_HEADER + length;
  return DECODED_FRAME;
}

/* A JSON writer into one bounded buffer.
 *
 * Invariant: whatever is written, the buffer never holds more than `limit` bytes, and after an
 * overflow nothing more is added until json_undo() takes the buffer back to a mark. So a packet
 * is always either complete or visibly cut at an element, never cut in the middle of one. */
#ifndef HOLD_JSON_H
#define HOLD_JSON_H

#include <stdbool.h>
#include <stddef.h>

/* A seqpacket must fit the peer's receive buffer whole; 60 KiB is far below the kernel's default. */
#define JSON_ROOM (60 * 1024)

struct json {
    size_t length;
    size_t limit;
    bool overflow;
    char text[JSON_ROOM];
};

void json_start(struct json *j);
void json_raw(struct json *j, const char *text);
void json_key(struct json *j, const char *key);     /* adds the comma when one is due */
void json_comma(struct json *j);                    /* between elements of an array */
void json_string(struct json *j, const char *bytes, size_t length);
void json_number(struct json *j, long long value);
void json_bool(struct json *j, bool value);
void json_undo(struct json *j, size_t mark);        /* back to length == mark, overflow forgotten */

/* The usual pairs, for a packet that reads as its shape. */
void json_pair_string(struct json *j, const char *key, const char *value);
void json_pair_number(struct json *j, const char *key, long long value);
void json_pair_bool(struct json *j, const char *key, bool value);
void json_pair_null(struct json *j, const char *key);

#endif

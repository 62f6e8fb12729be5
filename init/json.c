#include "json.h"

#include <stdio.h>
#include <string.h>

void json_start(struct json *j)
{
    j->length = 0;
    j->limit = sizeof j->text;
    j->overflow = false;
}

static void append(struct json *j, const char *bytes, size_t length)
{
    if (j->overflow || j->length > j->limit || length > j->limit - j->length) {
        j->overflow = true;
        return;
    }
    memcpy(j->text + j->length, bytes, length);
    j->length += length;
}

void json_raw(struct json *j, const char *text)
{
    append(j, text, strlen(text));
}

void json_undo(struct json *j, size_t mark)
{
    j->length = mark;
    j->overflow = false;
}

void json_comma(struct json *j)
{
    char last = j->length ? j->text[j->length - 1] : '{';
    if (last != '{' && last != '[')
        append(j, ",", 1);
}

void json_key(struct json *j, const char *key)
{
    json_comma(j);
    append(j, "\"", 1);
    json_raw(j, key);
    append(j, "\":", 2);
}

/* Length of the valid UTF-8 sequence at s, or 0. Names and paths are bytes to the kernel; JSON
 * must be Unicode, so overlong forms, surrogates and anything past U+10FFFF are not let through. */
static size_t utf8_length(const unsigned char *s, size_t left)
{
    size_t need = s[0] < 0xc2 ? 0 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : s[0] < 0xf5 ? 4 : 0;
    if (need == 0 || need > left)
        return 0;
    for (size_t i = 1; i < need; i++)
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) ||
        (s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] > 0x8f))
        return 0;
    return need;
}

void json_string(struct json *j, const char *bytes, size_t length)
{
    const unsigned char *s = (const unsigned char *)bytes;
    char escape[8];
    append(j, "\"", 1);
    for (size_t i = 0; i < length;) {
        if (s[i] == '"' || s[i] == '\\') {
            escape[0] = '\\';
            escape[1] = (char)s[i++];
            append(j, escape, 2);
        } else if (s[i] < 0x20 || s[i] == 0x7f) {
            snprintf(escape, sizeof escape, "\\u%04x", s[i++]);
            append(j, escape, 6);
        } else if (s[i] < 0x80) {
            append(j, (const char *)&s[i++], 1);
        } else {
            size_t n = utf8_length(s + i, length - i);
            if (n)
                append(j, (const char *)s + i, n);
            else
                append(j, "\\ufffd", 6);
            i += n ? n : 1;
        }
    }
    append(j, "\"", 1);
}

void json_number(struct json *j, long long value)
{
    char digits[24];
    snprintf(digits, sizeof digits, "%lld", value);
    json_raw(j, digits);
}

void json_bool(struct json *j, bool value)
{
    json_raw(j, value ? "true" : "false");
}

void json_pair_string(struct json *j, const char *key, const char *value)
{
    json_key(j, key);
    json_string(j, value, strlen(value));
}

void json_pair_number(struct json *j, const char *key, long long value)
{
    json_key(j, key);
    json_number(j, value);
}

void json_pair_bool(struct json *j, const char *key, bool value)
{
    json_key(j, key);
    json_bool(j, value);
}

void json_pair_null(struct json *j, const char *key)
{
    json_key(j, key);
    json_raw(j, "null");
}

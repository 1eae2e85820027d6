#include "user.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "util.h"

/* Larger files are read up to here, bytes. */
#define TABLE_LIMIT (1u << 20)

/* Fields of a line, in place: not terminated. */
#define MAX_FIELDS 7

struct field {
  const char *text;
  size_t length;
};

static char *load(const char *path) {
  char *text = must_alloc(TABLE_LIMIT);
  if (read_small_file(path, text, TABLE_LIMIT) < 0) text[0] = '\0';
  return text;
}

struct user_tables user_tables_load(void) {
  return (struct user_tables){.passwd = load("/etc/passwd"), .group = load("/etc/group")};
}

/* Splits the line at *at and moves on to the next; false at the end of the table. */
static bool next_line(const char **at, struct field fields[MAX_FIELDS], size_t *count) {
  if (**at == '\0') return false;
  size_t length = strcspn(*at, "\n");
  const char *end = *at + length;
  const char *from = *at;
  *count = 0;
  while (*count < MAX_FIELDS) {
    const char *colon = memchr(from, ':', (size_t)(end - from));
    const char *to = colon != NULL ? colon : end;
    fields[(*count)++] = (struct field){.text = from, .length = (size_t)(to - from)};
    if (colon == NULL) break;
    from = colon + 1;
  }
  *at = *end == '\n' ? end + 1 : end;
  return true;
}

static bool field_is(const struct field *field, const char *text) {
  return field->length == strlen(text) && memcmp(field->text, text, field->length) == 0;
}

static bool field_number(const struct field *field, uint32_t *value) {
  if (field->length == 0 || field->length > 10) return false;
  uint64_t number = 0;
  for (size_t i = 0; i < field->length; i++) {
    if (field->text[i] < '0' || field->text[i] > '9') return false;
    number = number * 10 + (uint64_t)(field->text[i] - '0');
  }
  *value = (uint32_t)number;
  return number <= UINT32_MAX;
}

static char *field_copy(const struct field *field) {
  char *text = must_alloc(field->length + 1);
  memcpy(text, field->text, field->length);
  return text;
}

/* name:password:uid:gid:comment:home:shell */
static bool find_line(const struct user_tables *tables, const char *name, const uint32_t *uid, struct field fields[MAX_FIELDS]) {
  const char *at = tables->passwd;
  size_t count;
  while (next_line(&at, fields, &count)) {
    uint32_t line_uid;
    uint32_t line_gid;
    if (count < 6 || !field_number(&fields[2], &line_uid) || !field_number(&fields[3], &line_gid)) continue;
    if (count == 6) fields[6] = (struct field){.text = "", .length = 0};
    if (name != NULL ? field_is(&fields[0], name) : line_uid == *uid) return true;
  }
  return false;
}

/* Whether a comma-separated list of members names a user. */
static bool has_member(const struct field *members, const char *name) {
  const char *at = members->text;
  const char *end = at + members->length;
  while (at < end) {
    const char *comma = memchr(at, ',', (size_t)(end - at));
    struct field member = {.text = at, .length = (size_t)((comma != NULL ? comma : end) - at)};
    if (field_is(&member, name)) return true;
    at += member.length + 1;
  }
  return false;
}

/* name:password:gid:members */
static void collect_groups(const struct user_tables *tables, struct user *user) {
  const char *at = tables->group;
  struct field fields[MAX_FIELDS];
  size_t count;
  user->groups[0] = user->gid;
  user->group_count = 1;
  while (next_line(&at, fields, &count) && user->group_count < MAX_GROUPS) {
    uint32_t gid;
    if (count < 4 || !field_number(&fields[2], &gid) || gid == user->gid) continue;
    if (has_member(&fields[3], user->name)) user->groups[user->group_count++] = gid;
  }
}

bool user_find(const struct user_tables *tables, const char *who, struct user *user) {
  struct field fields[MAX_FIELDS];
  if (!find_line(tables, who, NULL, fields)) {
    struct field number = {.text = who, .length = strlen(who)};
    uint32_t uid;
    if (!field_number(&number, &uid) || !find_line(tables, NULL, &uid, fields)) return false;
  }
  field_number(&fields[2], &user->uid);
  field_number(&fields[3], &user->gid);
  user->name = field_copy(&fields[0]);
  user->home = field_copy(&fields[5]);
  user->shell = field_copy(&fields[6]);
  collect_groups(tables, user);
  return true;
}

static void copy_name(char *into, size_t size, const struct field *field, uint32_t number) {
  if (field != NULL) {
    snprintf(into, size, "%.*s", (int)field->length, field->text);
  } else {
    snprintf(into, size, "%u", number);
  }
}

void user_name_of(const struct user_tables *tables, uid_t uid, char *into, size_t size) {
  struct field fields[MAX_FIELDS];
  copy_name(into, size, find_line(tables, NULL, &uid, fields) ? &fields[0] : NULL, uid);
}

void user_group_of(const struct user_tables *tables, gid_t gid, char *into, size_t size) {
  const char *at = tables->group;
  struct field fields[MAX_FIELDS];
  size_t count;
  while (next_line(&at, fields, &count)) {
    uint32_t line_gid;
    if (count < 3 || !field_number(&fields[2], &line_gid) || line_gid != gid) continue;
    copy_name(into, size, &fields[0], gid);
    return;
  }
  copy_name(into, size, NULL, gid);
}

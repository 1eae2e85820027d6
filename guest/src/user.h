/* Users and groups from the guest's own /etc/passwd and /etc/group. Reads files: for child processes only. */
#ifndef AENV_USER_H
#define AENV_USER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define MAX_GROUPS 256

struct user {
  uid_t uid;
  gid_t gid;
  char *name;
  char *home;
  char *shell;
  gid_t groups[MAX_GROUPS]; /* the primary one first */
  size_t group_count;
};

/* The two files in memory, for many lookups. */
struct user_tables {
  char *passwd;
  char *group;
};

struct user_tables user_tables_load(void);
/* By name, or by decimal uid; false when passwd has no such user. */
bool user_find(const struct user_tables *tables, const char *who, struct user *user);
/* The name of a uid or gid; the number as text when there is none. */
void user_name_of(const struct user_tables *tables, uid_t uid, char *into, size_t size);
void user_group_of(const struct user_tables *tables, gid_t gid, char *into, size_t size);

#endif

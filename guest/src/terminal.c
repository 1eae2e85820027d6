#define _GNU_SOURCE
#include "terminal.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "util.h"

bool terminal_open(int ends[3], int *user_end) {
  ends[1] = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  if (ends[1] < 0 || grantpt(ends[1]) != 0 || unlockpt(ends[1]) != 0) return false;
  set_nonblocking(ends[1]);
  ends[0] = fcntl(ends[1], F_DUPFD_CLOEXEC, 0);
  const char *name = ptsname(ends[1]);
  if (ends[0] < 0 || name == NULL) return false;
  *user_end = open(name, O_RDWR | O_NOCTTY | O_CLOEXEC);
  return *user_end >= 0;
}

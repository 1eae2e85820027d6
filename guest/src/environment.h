/* The environment that processes in the guest find: file systems, names, limits. */
#ifndef AENV_ENVIRONMENT_H
#define AENV_ENVIRONMENT_H

#include <stdbool.h>
#include <stddef.h>

/* The kernel's command line. */
struct kernel_parameters {
  char text[4096];
};

/* The value of `name=value`; false when it is missing or too long. */
bool kernel_parameter(const struct kernel_parameters *parameters, const char *name, char *value, size_t size);

/* Completes a root file system that has /dev, /proc and /sys. */
void environment_prepare(const struct kernel_parameters *parameters);

#endif

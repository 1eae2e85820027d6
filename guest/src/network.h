/* Loopback and eth0 of a microVM. */
#ifndef AENV_NETWORK_H
#define AENV_NETWORK_H

struct kernel_parameters;

/* Brings lo up, and eth0 with the addresses of the kernel parameters (boot.h). */
void network_prepare(const struct kernel_parameters *parameters);

#endif

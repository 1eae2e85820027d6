/* TCP inside the sandbox: connections to its ports, and listening for connections of its processes. */
#ifndef AENV_PORT_H
#define AENV_PORT_H

#include <stddef.h>
#include <stdint.h>

struct agent;
struct request;

struct ports {
  size_t connections;
  size_t listeners;
  uint32_t next_id; /* of the streams the guest opens, without bit 31 */
};

void port_connect(struct agent *agent, const struct request *request);
void port_listen(struct agent *agent, const struct request *request);

#endif

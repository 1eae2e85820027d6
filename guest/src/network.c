#define _GNU_SOURCE
#include "network.h"

#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <net/route.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "environment.h"
#include "util.h"

#define INTERFACE "eth0"
#define INTERFACE_WAIT_MS 5000

/* linux/ipv6.h clashes with the C library's own headers. */
struct v6_address_request {
  struct in6_addr address;
  uint32_t prefix;
  int interface;
};

static void set_up(int fd, const char *name) {
  struct ifreq request = {0};
  strcpy(request.ifr_name, name);
  if (ioctl(fd, SIOCGIFFLAGS, &request) == 0) {
    request.ifr_flags = (short)(request.ifr_flags | IFF_UP | IFF_RUNNING);
    if (ioctl(fd, SIOCSIFFLAGS, &request) == 0) return;
  }
  warn("cannot bring %s up: %s", name, strerror(errno));
}

/* Splits "address/prefix". */
static bool parse_prefix(char *text, unsigned most, unsigned *prefix) {
  char *slash = strchr(text, '/');
  if (slash == NULL) return false;
  *slash = '\0';
  *prefix = (unsigned)strtoul(slash + 1, NULL, 10);
  return *prefix > 0 && *prefix <= most;
}

static bool wait_for_interface(void) {
  uint64_t end = monotonic_ns() + INTERFACE_WAIT_MS * NS_PER_MS;
  const struct timespec moment = {.tv_nsec = 1000 * 1000};
  while (if_nametoindex(INTERFACE) == 0) {
    if (monotonic_ns() > end) return false;
    nanosleep(&moment, NULL);
  }
  return true;
}

static void set_v4_field(int fd, unsigned long operation, in_addr_t value) {
  struct ifreq request = {.ifr_name = INTERFACE};
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = value};
  memcpy(&request.ifr_addr, &address, sizeof address);
  if (ioctl(fd, operation, &request) != 0) warn("cannot set an address of " INTERFACE ": %s", strerror(errno));
}

static void add_v4(int fd, char *text, const char *gateway) {
  unsigned prefix;
  struct in_addr address;
  if (!parse_prefix(text, 32, &prefix) || inet_pton(AF_INET, text, &address) != 1) {
    warn("aenv.ip4 is not address/prefix: %s", text);
    return;
  }
  set_v4_field(fd, SIOCSIFADDR, address.s_addr);
  set_v4_field(fd, SIOCSIFNETMASK, htonl(~0u << (32 - prefix)));
  set_up(fd, INTERFACE);
  struct sockaddr_in via = {.sin_family = AF_INET};
  struct sockaddr_in any = {.sin_family = AF_INET};
  struct rtentry route = {.rt_flags = RTF_UP | RTF_GATEWAY};
  if (inet_pton(AF_INET, gateway, &via.sin_addr) != 1) return;
  memcpy(&route.rt_gateway, &via, sizeof via);
  memcpy(&route.rt_dst, &any, sizeof any);
  memcpy(&route.rt_genmask, &any, sizeof any);
  if (ioctl(fd, SIOCADDRT, &route) != 0) warn("cannot set the route to %s: %s", gateway, strerror(errno));
}

static void add_v6(char *text, const char *gateway) {
  unsigned prefix;
  struct v6_address_request request = {.interface = (int)if_nametoindex(INTERFACE)};
  int fd = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return; /* a kernel without IPv6 */
  if (!parse_prefix(text, 128, &prefix) || inet_pton(AF_INET6, text, &request.address) != 1) {
    warn("aenv.ip6 is not address/prefix: %s", text);
  } else {
    request.prefix = prefix;
    if (ioctl(fd, SIOCSIFADDR, &request) != 0) warn("cannot set %s: %s", text, strerror(errno));
    struct in6_rtmsg route = {
        .rtmsg_metric = 1024,
        .rtmsg_flags = RTF_UP | RTF_GATEWAY,
        .rtmsg_ifindex = request.interface,
    };
    if (inet_pton(AF_INET6, gateway, &route.rtmsg_gateway) == 1 && ioctl(fd, SIOCADDRT, &route) != 0) {
      warn("cannot set the route to %s: %s", gateway, strerror(errno));
    }
  }
  close(fd);
}

/* Its addresses are the only ones on the link: no time is spent on detecting duplicates or routers. */
static void quiet_v6(void) {
  write_control_file("/proc/sys/net/ipv6/conf/" INTERFACE "/accept_dad", "0");
  write_control_file("/proc/sys/net/ipv6/conf/" INTERFACE "/accept_ra", "0");
}

void network_prepare(const struct kernel_parameters *parameters) {
  char address[64];
  char gateway[64];
  int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) die("no network sockets: %s", strerror(errno));
  set_up(fd, "lo");
  bool v4 = kernel_parameter(parameters, "aenv.ip4", address, sizeof address);
  if (v4 && !wait_for_interface()) {
    warn("there is no " INTERFACE);
  } else if (v4) {
    quiet_v6();
    if (!kernel_parameter(parameters, "aenv.gw4", gateway, sizeof gateway)) gateway[0] = '\0';
    add_v4(fd, address, gateway);
    if (!kernel_parameter(parameters, "aenv.gw6", gateway, sizeof gateway)) gateway[0] = '\0';
    if (kernel_parameter(parameters, "aenv.ip6", address, sizeof address)) add_v6(address, gateway);
  }
  close(fd);
}

#include "init.h"

#include "util.h"

void init_become_environment(void) { die("to be written"); }
int init_open_port(void) { die("to be written"); }

/* Pseudo terminals. */
#ifndef AENV_TERMINAL_H
#define AENV_TERMINAL_H

#include <stdbool.h>

/* Opens one: the agent's end twice (for input in ends[0], for output in ends[1]), and the user's end. false with errno. */
bool terminal_open(int ends[3], int *user_end);

#endif

#ifndef TAP_H
#define TAP_H

/* A few lines of TAP. Each test is a process of its own, so that a crash fails that test alone. */

#define _POSIX_C_SOURCE 200809L

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static int tap_count;
static int tap_failed;

#define CHECK(condition)                                                        \
    do {                                                                        \
        if (!(condition)) {                                                     \
            printf("# %s:%d: not true: %s\n", __FILE__, __LINE__, #condition);  \
            fflush(stdout);                                                     \
            _exit(1);                                                           \
        }                                                                       \
    } while (0)

/* The argument says how many tests ran before this program. */
static void begin(int argc, char **argv)
{
    tap_count = argc > 1 ? atoi(argv[1]) : 0;
}

static void test(const char *name, void (*body)(void))
{
    int status = 1;
    pid_t child;

    fflush(stdout);
    child = fork();
    if (child == 0) {
        alarm(10);
        body();
        _exit(0);
    }
    if (child < 0 || waitpid(child, &status, 0) < 0)
        status = 1;
    tap_count++;
    tap_failed += status != 0;
    printf("%sok %d - %s\n", status == 0 ? "" : "not ", tap_count, name);
}

/* The exit code of the program. The plan is printed by run.sh, which adds up all programs. */
static int finish(void)
{
    return tap_failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

#endif

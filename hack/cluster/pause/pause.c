// The first process of every pod: it holds the pod's namespaces, reaps orphans, and does nothing
// else. Static and without a library's start-up it is some 20 kB in memory.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void end(int signal) {
  (void)signal;
  _exit(0);
}

static void reap(int signal) {
  (void)signal;
  while (waitpid(-1, 0, WNOHANG) > 0) {
  }
}

int main(void) {
  struct sigaction on_end = {.sa_handler = end};
  struct sigaction on_child = {.sa_handler = reap, .sa_flags = SA_NOCLDSTOP};
  sigaction(SIGINT, &on_end, 0);
  sigaction(SIGTERM, &on_end, 0);
  sigaction(SIGCHLD, &on_child, 0);
  for (;;)
    pause();
}

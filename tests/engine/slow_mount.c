/* Preloaded into bindfs: each read takes DELAY_READS ms, each write DELAY_WRITES ms, and
 * REQUEST_LOG gets an "r" or a "w" for it. See slow_mounts.py. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static void log_request(const char *which) {
  int log = open(getenv("REQUEST_LOG"), O_WRONLY | O_APPEND | O_CREAT, 0600);
  if (write(log, which, 1) != 1) abort();
  close(log);
}

static void delay(const char *name) {
  const char *milliseconds = getenv(name);
  struct timespec pause = {0, 0};
  if (milliseconds) pause.tv_nsec = (long)(atof(milliseconds) * 1e6);
  nanosleep(&pause, NULL);
}

ssize_t pread64(int fd, void *memory, size_t num_bytes, off64_t start) {
  ssize_t (*pread_of_system)(int, void *, size_t, off64_t) = dlsym(RTLD_NEXT, "pread64");
  log_request("r");
  delay("DELAY_READS");
  return pread_of_system(fd, memory, num_bytes, start);
}

ssize_t pwrite64(int fd, const void *memory, size_t num_bytes, off64_t start) {
  ssize_t (*pwrite_of_system)(int, const void *, size_t, off64_t) = dlsym(RTLD_NEXT, "pwrite64");
  log_request("w");
  delay("DELAY_WRITES");
  return pwrite_of_system(fd, memory, num_bytes, start);
}

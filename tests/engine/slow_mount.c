/* Preloaded into bindfs: each read takes DELAY_READS ms, each write DELAY_WRITES ms, each file that
 * is opened DELAY_OPENS ms. REQUEST_LOG gets an "r", a "w" or an "o" when it is asked, and a "." when
 * it answers. See slow_mounts.py. */
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

static void delay(const char *which, const char *name) {
  const char *milliseconds = getenv(name);
  struct timespec pause = {0, 0};
  if (milliseconds) pause.tv_nsec = (long)(atof(milliseconds) * 1e6);
  log_request(which);
  nanosleep(&pause, NULL);
  log_request(".");
}

int __open64_2(const char *path, int flags) {
  int (*open_of_system)(const char *, int) = dlsym(RTLD_NEXT, "__open64_2");
  delay("o", "DELAY_OPENS");
  return open_of_system(path, flags);
}

ssize_t pread64(int fd, void *memory, size_t num_bytes, off64_t start) {
  ssize_t (*pread_of_system)(int, void *, size_t, off64_t) = dlsym(RTLD_NEXT, "pread64");
  delay("r", "DELAY_READS");
  return pread_of_system(fd, memory, num_bytes, start);
}

ssize_t pwrite64(int fd, const void *memory, size_t num_bytes, off64_t start) {
  ssize_t (*pwrite_of_system)(int, const void *, size_t, off64_t) = dlsym(RTLD_NEXT, "pwrite64");
  delay("w", "DELAY_WRITES");
  return pwrite_of_system(fd, memory, num_bytes, start);
}

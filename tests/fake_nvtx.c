/* Stands in for NVIDIA's libnvtx3interop.so.1 in tests: writes what is pushed and popped into $FAKE_NVTX, a line each.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

__attribute__((visibility("default"))) int nvtxRangePushA(const char *name) {
    const char *path = getenv("FAKE_NVTX");
    int file = path ? open(path, O_WRONLY | O_CREAT | O_APPEND, 0600) : -1;
    if (file < 0) return 0;
    dprintf(file, "push %s\n", name);
    return close(file);
}

__attribute__((visibility("default"))) int nvtxRangePop(void) {
    const char *path = getenv("FAKE_NVTX");
    int file = path ? open(path, O_WRONLY | O_CREAT | O_APPEND, 0600) : -1;
    if (file < 0) return 0;
    dprintf(file, "pop\n");
    return close(file);
}

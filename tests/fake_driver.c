/* Stands in for libcuda.so.1 in tests: a driver that is too old for any build, and takes a range of the test's own
 * memory for a device's. */
#include "fake_driver.h"

typedef int driver_result;
enum { SUCCESS = 0, INVALID_VALUE = 1, MEMORY_TYPE = 2, IS_MANAGED = 8, TYPE_DEVICE = 2 };

__attribute__((visibility("default"))) fake_driver_memory fake_driver_range;

__attribute__((visibility("default"))) driver_result cuInit(unsigned flags) {
    (void)flags;
    return SUCCESS;
}

__attribute__((visibility("default"))) driver_result cuDriverGetVersion(int *version) {
    *version = 11040;
    return SUCCESS;
}

__attribute__((visibility("default"))) driver_result cuPointerGetAttribute(void *data, int attribute,
                                                                           unsigned long long pointer) {
    if (pointer < fake_driver_range.from || pointer >= fake_driver_range.to) return INVALID_VALUE;
    if (attribute == MEMORY_TYPE) *(int *)data = TYPE_DEVICE;
    else if (attribute == IS_MANAGED) *(int *)data = fake_driver_range.managed;
    else return INVALID_VALUE;
    return SUCCESS;
}

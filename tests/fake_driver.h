/* What a test tells the stand-in for the CUDA driver: which addresses are a device's. */
#ifndef FAKE_DRIVER_H
#define FAKE_DRIVER_H

typedef struct fake_driver_memory {
    unsigned long long from, to;
    int managed; /* the CPU can read it all the same */
} fake_driver_memory;

#endif

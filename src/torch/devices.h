/* devices.h - torch's device types and indexes, and the ledger's device numbers. No GIL needed. */
#ifndef MST_DEVICES_H
#define MST_DEVICES_H

#include "torch/state.h"

enum { MST_CPU = 0, MST_CUDA = 1 }; /* torch's device types that are treated specially */

/* The ledger's number of a device, new if need be; MS_MAX_DEVICES if there are too many. The CPU is 0. */
uint32_t mst_device_number(int8_t type, int8_t index);
int8_t mst_device_type(uint32_t number);

void mst_devices_lock(void); /* around fork */
void mst_devices_unlock(void);

#endif

/* libcuda.c - stands in for the CUDA driver's library where a machine has none, for a process that only asks cuDNN for
 * plans. Some plans are made by compiling a kernel and loading it: here every kernel can be loaded, and nothing runs.
 * It is installed beside the extensions under another name; the name inside is the driver's. */
enum { SUCCESS = 0, NO_DEVICE = 100 };

#define ANSWERS(name, answer) \
    int name(void);           \
    int name(void)            \
    {                         \
        return answer;        \
    }

#define GIVES_HANDLE(name)   \
    int name(void **handle); \
    int name(void **handle)  \
    {                        \
        static char nothing; \
        *handle = &nothing;  \
        return SUCCESS;      \
    }

GIVES_HANDLE(cuLibraryLoadData)
GIVES_HANDLE(cuLibraryGetKernel)
GIVES_HANDLE(cuModuleLoadData)
GIVES_HANDLE(cuModuleGetFunction)
ANSWERS(cuLibraryUnload, SUCCESS)
ANSWERS(cuModuleUnload, SUCCESS)
ANSWERS(cuKernelSetAttribute, SUCCESS)
ANSWERS(cuFuncSetAttribute, SUCCESS)
ANSWERS(cuTensorMapEncodeTiled, SUCCESS)
ANSWERS(cuTensorMapEncodeIm2col, SUCCESS)
ANSWERS(cuInit, NO_DEVICE)
ANSWERS(cuGetErrorString, NO_DEVICE)

/* What else cuDNN looks up: it uses none of the library where one function is absent. */
ANSWERS(cuGetErrorName, NO_DEVICE)
ANSWERS(cuCtxGetCurrent, NO_DEVICE)
ANSWERS(cuCtxGetLimit, NO_DEVICE)
ANSWERS(cuCtxPopCurrent, NO_DEVICE)
ANSWERS(cuCtxPushCurrent, NO_DEVICE)
ANSWERS(cuStreamGetCtx, NO_DEVICE)
ANSWERS(cuDriverGetVersion, NO_DEVICE)
ANSWERS(cuLinkCreate, NO_DEVICE)
ANSWERS(cuLinkAddData, NO_DEVICE)
ANSWERS(cuLinkComplete, NO_DEVICE)
ANSWERS(cuLinkDestroy, NO_DEVICE)
ANSWERS(cuLaunchKernel, NO_DEVICE)
ANSWERS(cuLaunchCooperativeKernel, NO_DEVICE)
ANSWERS(cuLaunchKernelEx, NO_DEVICE)
ANSWERS(cuDeviceGetCount, NO_DEVICE)
ANSWERS(cuDeviceGet, NO_DEVICE)
ANSWERS(cuLibraryLoadFromFile, NO_DEVICE)
ANSWERS(cuKernelGetAttribute, NO_DEVICE)
ANSWERS(cuOccupancyMaxPotentialClusterSize, NO_DEVICE)

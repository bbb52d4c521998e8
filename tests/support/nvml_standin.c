/* A stand-in for libnvidia-ml.so.1, so that the real nvidia-ml-py can be used without a GPU.

   It reads the scenario file named by NVML_STANDIN anew at each call, so a test can change what
   the machine is like while it is being looked at. Its lines, in any order:

     init CODE                                 what nvmlInit returns
     shutdown CODE                             what nvmlShutdown returns
     device UUID MEMORY MAJOR MINOR MODEL...   one for each device; `-` for an empty UUID
     fail INDEX FUNCTION CODE                  what a call on that device returns
     lost INDEX CALLS                          it is lost after so many calls on it
     process INDEX Compute|Graphics PID BYTES  BYTES of -1: the driver does not tell
     used INDEX BYTES                          used memory, else the sum of its processes
     reserved INDEX BYTES                      what the driver keeps for itself
     mig INDEX                                 it is in MIG mode
     remapped INDEX PENDING FAILED             rows of bad memory
     busy INDEX PERCENT                        how busy it is
     heat INDEX CELSIUS MILLIWATTS             its temperature and its power

   With -DOLD it lacks the calls that drivers of 2021 lack. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS, UNINITIALIZED, INVALID, NOT_SUPPORTED, INSUFFICIENT_SIZE = 7, LOST = 15 };

typedef struct { unsigned long long total, free, used; } memory_v1;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2;
typedef struct { unsigned pid; unsigned long long used; unsigned gpu, compute; } process;
typedef struct { char uuid[96], model[96]; unsigned long long memory; int major, minor; } device;

static int sessions;
static int calls[64];

static FILE *scenario(void)
{
    const char *path = getenv("NVML_STANDIN");
    FILE *file = path ? fopen(path, "r") : NULL;
    if (!file) {
        fprintf(stderr, "the stand-in cannot read its scenario %s\n", path ? path : "(none)");
        abort();
    }
    return file;
}

/* The one or two numbers that the scenario has for a device; they stay as they are if it has none. */
static int numbers(const char *format, int index, long long *first, long long *second)
{
    char line[512];
    long long one = 0, two = 0;
    int of, found = 0;
    FILE *file = scenario();
    while (!found && fgets(line, sizeof line, file))
        found = sscanf(line, format, &of, &one, &two) >= 1 && of == index;
    fclose(file);
    if (found) {
        *first = one;
        *second = two;
    }
    return found;
}

static int devices(int wanted, device *out)
{
    char line[512];
    device one;
    int count = 0;
    FILE *file = scenario();
    while (fgets(line, sizeof line, file)) {
        memset(&one, 0, sizeof one);
        if (sscanf(line, "device %95s %llu %d %d %95[^\n]", one.uuid, &one.memory, &one.major,
                   &one.minor, one.model) < 4)
            continue;
        if (count++ == wanted)
            *out = one;
    }
    fclose(file);
    return count;
}

/* What a call of `function` on device `index` returns before it does anything. */
static int enter(int index, const char *function)
{
    char line[512], name[96];
    int of, code, result = SUCCESS;
    long long after = -1, none;
    FILE *file;
    if (!sessions)
        return UNINITIALIZED;
    if (index < 0 || index >= devices(-1, NULL))
        return INVALID;
    if (numbers("lost %d %lld", index, &after, &none) && calls[index]++ >= after)
        return LOST;
    file = scenario();
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "fail %d %95s %d", &of, name, &code) == 3 && of == index &&
            !strcmp(name, function))
            result = code;
    fclose(file);
    return result;
}

static int of(void *handle) { return (int)(size_t)handle - 1; }

#define ENTER(handle)                                  \
    int index = of(handle);                            \
    device it;                                         \
    int code = enter(index, __func__);                 \
    if (code != SUCCESS)                               \
        return code;                                   \
    devices(index, &it)

static int told(const char *format)
{
    char line[512];
    int code = SUCCESS;
    FILE *file = scenario();
    while (fgets(line, sizeof line, file))
        sscanf(line, format, &code);
    fclose(file);
    return code;
}

int nvmlInitWithFlags(unsigned flags)
{
    int code = told("init %d");
    sessions += code == SUCCESS;
    return flags ? INVALID : code;
}

int nvmlShutdown(void)
{
    int code = told("shutdown %d");
    sessions -= code == SUCCESS && sessions;
    return code;
}

const char *nvmlErrorString(int code) { return code == 23 ? "Insufficient Resources" : "?"; }

int nvmlDeviceGetCount_v2(unsigned *count)
{
    *count = devices(-1, NULL);
    return sessions ? SUCCESS : UNINITIALIZED;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle)
{
    *handle = (void *)(size_t)(index + 1);
    return enter(index, __func__);
}

int nvmlDeviceGetUUID(void *handle, char *out, unsigned length)
{
    ENTER(handle);
    snprintf(out, length, "%s", strcmp(it.uuid, "-") ? it.uuid : "");
    return SUCCESS;
}

int nvmlDeviceGetName(void *handle, char *out, unsigned length)
{
    ENTER(handle);
    snprintf(out, length, "%s", it.model);
    return SUCCESS;
}

int nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor)
{
    ENTER(handle);
    *major = it.major;
    *minor = it.minor;
    return SUCCESS;
}

static int processes(int index, const char *wanted, process *out, unsigned room)
{
    char line[512], kind[16];
    int on, count = 0;
    long long bytes;
    unsigned pid;
    FILE *file = scenario();
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "process %d %15s %u %lld", &on, kind, &pid, &bytes) < 4 || on != index ||
            (wanted && strcmp(kind, wanted)))
            continue;
        if ((unsigned)count < room)
            out[count] = (process){pid, (unsigned long long)bytes, ~0u, ~0u};
        count++;
    }
    fclose(file);
    return count;
}

static int running(int index, const char *kind, unsigned *count, process *out)
{
    unsigned room = out ? *count : 0;
    *count = processes(index, kind, out, room);
    return *count > room ? INSUFFICIENT_SIZE : SUCCESS;
}

static unsigned long long used(int index)
{
    long long told, none;
    process all[64];
    unsigned long long sum = 0;
    int count = processes(index, NULL, all, 64);
    if (numbers("used %d %lld", index, &told, &none))
        return told;
    while (count--)
        sum += all[count].used == ~0ull ? 0 : all[count].used;
    return sum;
}

int nvmlDeviceGetMemoryInfo(void *handle, memory_v1 *out)
{
    long long reserved = 0, none;
    ENTER(handle);
    numbers("reserved %d %lld", index, &reserved, &none);
    out->total = it.memory;
    out->used = used(index) + reserved;
    out->free = out->total - out->used;
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(void *handle, unsigned *out)
{
    long long busy = 0, none;
    ENTER(handle);
    numbers("busy %d %lld", index, &busy, &none);
    out[0] = busy;
    out[1] = 0;
    return SUCCESS;
}

int nvmlDeviceGetTemperature(void *handle, int sensor, unsigned *out)
{
    long long heat = 30, none;
    ENTER(handle);
    numbers("heat %d %lld", index, &heat, &none);
    *out = heat;
    return sensor == 0 ? SUCCESS : INVALID;
}

int nvmlDeviceGetPowerUsage(void *handle, unsigned *out)
{
    long long none, power = 20000;
    ENTER(handle);
    numbers("heat %d %lld %lld", index, &none, &power);
    *out = power;
    return SUCCESS;
}

#define LISTS(version)                                                                       \
    int nvmlDeviceGetComputeRunningProcesses_##version(void *handle, unsigned *n, process *p)  \
    {                                                                                        \
        ENTER(handle);                                                                       \
        return running(index, "Compute", n, p);                                              \
    }                                                                                        \
    int nvmlDeviceGetGraphicsRunningProcesses_##version(void *handle, unsigned *n, process *p) \
    {                                                                                        \
        ENTER(handle);                                                                       \
        return running(index, "Graphics", n, p);                                             \
    }

#ifdef OLD
LISTS(v2)
#else
LISTS(v3)

int nvmlDeviceGetMemoryInfo_v2(void *handle, memory_v2 *out)
{
    long long reserved = 0, none;
    ENTER(handle);
    if (out->version != 0x02000028)
        return INVALID;
    numbers("reserved %d %lld", index, &reserved, &none);
    out->total = it.memory;
    out->reserved = reserved;
    out->used = used(index);
    out->free = out->total - out->used - reserved;
    return SUCCESS;
}

int nvmlDeviceGetMigMode(void *handle, unsigned *current, unsigned *pending)
{
    long long none;
    ENTER(handle);
    *current = *pending = numbers("mig %d", index, &none, &none);
    return it.major >= 8 ? SUCCESS : NOT_SUPPORTED;
}

int nvmlDeviceGetRemappedRows(void *handle, unsigned *correctable, unsigned *uncorrectable,
                              unsigned *pending, unsigned *failed)
{
    long long waits = 0, broken = 0;
    ENTER(handle);
    numbers("remapped %d %lld %lld", index, &waits, &broken);
    *correctable = *uncorrectable = 0;
    *pending = waits;
    *failed = broken;
    return it.major >= 8 ? SUCCESS : NOT_SUPPORTED;
}
#endif

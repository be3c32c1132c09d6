// A libnvidia-ml.so.1 for tests. Not NVIDIA's: it implements the functions of nvml.h that Pulsetrain calls.
//
// What it answers lies in a file that all processes map, named by PULSETRAIN_TEST_NVML. The functions test_* change
// it, from any process that has loaded this library. A value that is not a number answers "not supported".
// An event wakes the processes that wait for it (a futex in the file): nobody polls.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
    SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, DRIVER_NOT_LOADED = 9, TIMEOUT = 10,
    GPU_IS_LOST = 15, RESET_REQUIRED = 16, NO_PERMISSION = 4, UNKNOWN = 999
};
enum { XID_EVENT = 0x8 };
enum { MOST_GPUS = 16, TEXT = 96, RING = 256 };

// Every number of a GPU, by name. Units are NVML's: MHz, mW, mJ, percent, KB/s, bytes.
#define VALUES(X) \
    X(clock_sm) X(clock_memory) X(event_reasons) X(power) X(energy) X(temperature) X(utilization) \
    X(memory_activity) X(memory_used) X(memory_total) X(pcie_transmit) X(pcie_receive) X(pcie_generation) \
    X(pcie_generation_max) X(pcie_width) X(pcie_width_max) X(pcie_replays) X(ecc_corrected) X(ecc_uncorrected) \
    X(rows_correctable) X(rows_uncorrectable) X(rows_pending) X(rows_failed) X(nvlink_crc_flit) \
    X(recovery_action) X(nvlink_crc_data) X(nvlink_replays) X(nvlink_recoveries) X(nvlink_transmit) X(nvlink_receive) X(numa) \
    X(fabric_state) X(fabric_clique) X(gpm_sm) X(gpm_tensor) X(gpm_memory) X(event_types) X(lost) \
    X(nvlink_bad) X(nvlink5_malformed) X(nvlink5_receive_errors) X(nvlink5_integrity) X(nvlink5_failed) X(nvlink5_recoveries) \
    X(set_clock_graphics) X(set_clock_memory) X(set_power) X(clocks_restricted) X(privileged) X(delay_ms) X(needs_reset)
#define DECLARE(name) double name;
#define ENTRY(name) {#name, offsetof(struct gpu, name)},

struct gpu {
    VALUES(DECLARE)
    char uuid[TEXT], serial[TEXT], model[TEXT], pci[TEXT], fabric[TEXT];
};
struct event { uint32_t gpu; uint64_t type, data; };
struct state {
    uint32_t magic, gpus, loaded;
    uint32_t events;  // how many there were, and the futex that readers wait on
    struct event ring[RING];
    struct gpu gpu[MOST_GPUS];
};
struct event_set { uint32_t seen; uint64_t types[MOST_GPUS]; };
struct sample { uint32_t gpu; };

static const struct { const char *name; size_t offset; } NAMES[] = {VALUES(ENTRY)};
static struct state *state;

static int attach(const char *path, int create) {
    int fd = open(path, O_RDWR | (create ? O_CREAT : 0), 0600);
    if (fd < 0) return DRIVER_NOT_LOADED;
    if (create && ftruncate(fd, sizeof(struct state))) { close(fd); return UNKNOWN; }
    void *at = mmap(NULL, sizeof(struct state), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (at == MAP_FAILED) return UNKNOWN;
    state = at;
    return SUCCESS;
}

// -- for the test ------------------------------------------------------------------------------------------

int test_open(const char *path, unsigned gpus) {
    if (gpus > MOST_GPUS || attach(path, 1)) return INVALID_ARGUMENT;
    memset(state, 0, sizeof *state);
    state->gpus = gpus;
    state->loaded = 1;
    for (unsigned i = 0; i < gpus; i++)
        for (size_t n = 0; n < sizeof NAMES / sizeof *NAMES; n++)
            *(double *)((char *)&state->gpu[i] + NAMES[n].offset) = NAN;
    return SUCCESS;
}

int test_join(const char *path) { return attach(path, 0); }

int test_set(unsigned gpu, const char *name, double value) {
    for (size_t n = 0; n < sizeof NAMES / sizeof *NAMES; n++)
        if (!strcmp(NAMES[n].name, name)) {
            *(volatile double *)((char *)&state->gpu[gpu] + NAMES[n].offset) = value;
            return SUCCESS;
        }
    return INVALID_ARGUMENT;
}

int test_name(unsigned gpu, const char *what, const char *text) {
    struct gpu *g = &state->gpu[gpu];
    char *field = !strcmp(what, "uuid") ? g->uuid : !strcmp(what, "serial") ? g->serial
                : !strcmp(what, "model") ? g->model : !strcmp(what, "pci") ? g->pci
                : !strcmp(what, "fabric") ? g->fabric : NULL;
    if (!field) return INVALID_ARGUMENT;
    snprintf(field, TEXT, "%s", text);
    return SUCCESS;
}

int test_driver(int loaded) { state->loaded = loaded; return SUCCESS; }

static void wake(void) { syscall(SYS_futex, &state->events, FUTEX_WAKE, INT_MAX, NULL, NULL, 0); }

int test_raise(unsigned gpu, uint64_t type, uint64_t data) {
    uint32_t at = __atomic_load_n(&state->events, __ATOMIC_SEQ_CST);
    state->ring[at % RING] = (struct event){gpu, type, data};
    __atomic_store_n(&state->events, at + 1, __ATOMIC_SEQ_CST);
    wake();
    return SUCCESS;
}

// -- what programs call ------------------------------------------------------------------------------------

typedef struct gpu *device_t;

static int checked(device_t d) {
    if (!state) return UNINITIALIZED;
    return d->lost > 0 ? GPU_IS_LOST : SUCCESS;
}

static int read_value(device_t d, double value, double *out) {
    int failed = checked(d);
    if (failed) return failed;
    if (d->needs_reset > 0) return RESET_REQUIRED;
    if (isnan(value)) return NOT_SUPPORTED;
    *out = value;
    return SUCCESS;
}

static int read_text(device_t d, const char *text, char *out, unsigned length) {
    int failed = checked(d);
    if (failed) return failed;
    if (!text[0]) return NOT_SUPPORTED;
    snprintf(out, length, "%s", text);
    return SUCCESS;
}

#define NUMBER(function, type, field) \
    int function(device_t d, type *out) { \
        double value; int failed = read_value(d, d->field, &value); \
        if (!failed) *out = (type)value; \
        return failed; \
    }

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    const char *path = getenv("PULSETRAIN_TEST_NVML");
    if (!state && (!path || attach(path, 0))) return DRIVER_NOT_LOADED;
    return state->loaded ? SUCCESS : DRIVER_NOT_LOADED;
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return SUCCESS; }

const char *nvmlErrorString(int code) {
    switch (code) {
        case SUCCESS: return "Success";
        case UNINITIALIZED: return "Uninitialized";
        case INVALID_ARGUMENT: return "Invalid Argument";
        case NOT_SUPPORTED: return "Not Supported";
        case DRIVER_NOT_LOADED: return "Driver Not Loaded";
        case NO_PERMISSION: return "Insufficient Permissions";
        case TIMEOUT: return "Timeout";
        case GPU_IS_LOST: return "GPU is lost";
        case RESET_REQUIRED: return "GPU requires reset";
        default: return "Unknown Error";
    }
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    if (!state) return UNINITIALIZED;
    *count = state->gpus;
    return SUCCESS;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, device_t *device) {
    if (!state || index >= state->gpus) return INVALID_ARGUMENT;
    *device = &state->gpu[index];
    return checked(*device);
}

int nvmlDeviceGetUUID(device_t d, char *out, unsigned length) { return read_text(d, d->uuid, out, length); }
int nvmlDeviceGetSerial(device_t d, char *out, unsigned length) { return read_text(d, d->serial, out, length); }
int nvmlDeviceGetName(device_t d, char *out, unsigned length) { return read_text(d, d->model, out, length); }

struct pci { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; };
int nvmlDeviceGetPciInfo_v3(device_t d, struct pci *out) {
    memset(out, 0, sizeof *out);
    return read_text(d, d->pci, out->bus_id, sizeof out->bus_id);
}

NUMBER(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, event_reasons)
NUMBER(nvmlDeviceGetPowerUsage, unsigned, power)
NUMBER(nvmlDeviceGetTotalEnergyConsumption, unsigned long long, energy)
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, unsigned, pcie_generation)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, unsigned, pcie_generation_max)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, unsigned, pcie_width)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, unsigned, pcie_width_max)
NUMBER(nvmlDeviceGetPcieReplayCounter, unsigned, pcie_replays)
NUMBER(nvmlDeviceGetNumaNodeId, int, numa)
NUMBER(nvmlDeviceGetSupportedEventTypes, unsigned long long, event_types)

static int chosen(device_t d, double value, unsigned *out) {
    double read;
    int failed = read_value(d, value, &read);
    if (!failed) *out = (unsigned)read;
    return failed;
}
int nvmlDeviceGetClockInfo(device_t d, int kind, unsigned *out) {
    return chosen(d, kind == 1 ? d->clock_sm : kind == 2 ? d->clock_memory : NAN, out);
}
int nvmlDeviceGetTemperature(device_t d, int sensor, unsigned *out) {
    return chosen(d, sensor == 0 ? d->temperature : NAN, out);
}
struct temperature { unsigned version; int sensor; int celsius; };
int nvmlDeviceGetTemperatureV(device_t d, struct temperature *out) {
    return chosen(d, out->sensor == 0 ? d->temperature : NAN, (unsigned *)&out->celsius);
}
int nvmlDeviceGetPcieThroughput(device_t d, int kind, unsigned *out) {
    return chosen(d, kind == 0 ? d->pcie_transmit : d->pcie_receive, out);
}

// -- settings. `privileged` stands for a caller that is root, `delay_ms` for a driver that is slow ------------

int nvmlDeviceGetApplicationsClock(device_t d, int kind, unsigned *out) {
    if (d->delay_ms > 0) usleep((useconds_t)(d->delay_ms * 1000));
    return chosen(d, kind == 0 ? d->set_clock_graphics : kind == 2 ? d->set_clock_memory : NAN, out);
}
int nvmlDeviceSetApplicationsClocks(device_t d, unsigned memory, unsigned graphics) {
    int failed = checked(d);
    if (!failed && isnan(d->set_clock_graphics)) failed = NOT_SUPPORTED;
    if (!failed && d->clocks_restricted > 0 && !(d->privileged > 0)) failed = NO_PERMISSION;
    if (!failed) { d->set_clock_memory = memory; d->set_clock_graphics = graphics; }
    return failed;
}
NUMBER(nvmlDeviceGetPowerManagementLimit, unsigned, set_power)
int nvmlDeviceSetPowerManagementLimit(device_t d, unsigned milliwatts) {
    int failed = checked(d);
    if (!failed && isnan(d->set_power)) failed = NOT_SUPPORTED;
    if (!failed && !(d->privileged > 0)) failed = NO_PERMISSION;
    if (!failed) d->set_power = milliwatts;
    return failed;
}
int nvmlDeviceGetAPIRestriction(device_t d, int api, int *out) {
    return chosen(d, api == 0 ? d->clocks_restricted : NAN, (unsigned *)out);
}

struct utilization { unsigned gpu, memory; };
int nvmlDeviceGetUtilizationRates(device_t d, struct utilization *out) {
    int failed = chosen(d, d->utilization, &out->gpu);
    return failed ? failed : chosen(d, d->memory_activity, &out->memory);
}

struct memory { unsigned long long total, free, used; };
int nvmlDeviceGetMemoryInfo(device_t d, struct memory *out) {
    double total, used;
    int failed = read_value(d, d->memory_total, &total);
    if (!failed) failed = read_value(d, d->memory_used, &used);
    if (!failed) *out = (struct memory){total, total - used, used};
    return failed;
}

int nvmlDeviceGetTotalEccErrors(device_t d, int kind, int counter, unsigned long long *out) {
    double value;
    int failed = read_value(d, counter ? NAN : kind ? d->ecc_uncorrected : d->ecc_corrected, &value);
    if (!failed) *out = value;
    return failed;
}

int nvmlDeviceGetRemappedRows(device_t d, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
    int error = chosen(d, d->rows_correctable, corrected);
    if (!error) error = chosen(d, d->rows_uncorrectable, uncorrected);
    if (!error) error = chosen(d, d->rows_pending, pending);
    return error ? error : chosen(d, d->rows_failed, failed);
}

struct field {
    uint32_t id, scope; int64_t timestamp, latency; int type, result;
    union { double d; unsigned u; unsigned long long ull; } value;
};
/* traffic is that of one link, unless all are asked for */
#define LINKS 18
static double of_links(double all, uint32_t scope) { return scope == UINT32_MAX ? all : all / LINKS; }
/* all errors are those of one link */
static double of_bad_link(device_t d, double all, uint32_t scope) {
    return isnan(all) || scope == UINT32_MAX || scope == d->nvlink_bad ? all : 0;
}
int nvmlDeviceGetNvLinkErrorCounter(device_t d, unsigned link, int counter, unsigned long long *out) {
    const double totals[] = {d->nvlink_replays, d->nvlink_recoveries, d->nvlink_crc_flit, d->nvlink_crc_data};
    if (link >= LINKS || counter < 0 || counter > 3) return INVALID_ARGUMENT;
    double value;
    int failed = read_value(d, of_bad_link(d, totals[counter], link), &value);
    if (!failed) *out = value;
    return failed;
}
static double field_value(device_t d, uint32_t id, uint32_t scope) {
    switch (id) {
        case 38: return d->nvlink_crc_flit;
        case 45: return d->nvlink_crc_data;
        case 52: return d->nvlink_replays;
        case 59: return d->nvlink_recoveries;
        case 91: return LINKS;
        case 206: return of_bad_link(d, d->nvlink5_malformed, scope);
        case 208: return of_bad_link(d, d->nvlink5_receive_errors, scope);
        case 211: return of_bad_link(d, d->nvlink5_integrity, scope);
        case 214: return of_bad_link(d, d->nvlink5_failed, scope);
        case 215: return of_bad_link(d, d->nvlink5_recoveries, scope);
        case 138: return of_links(d->nvlink_transmit, scope);
        case 139: return of_links(d->nvlink_receive, scope);
        case 230: return d->recovery_action;
        default: return NAN;
    }
}
int nvmlDeviceGetFieldValues(device_t d, int count, struct field *fields) {
    int failed = checked(d);
    for (int i = 0; !failed && i < count; i++) {
        double value = 0;
        fields[i].result = read_value(d, field_value(d, fields[i].id, fields[i].scope), &value);
        fields[i].type = 3;
        fields[i].value.ull = value;
    }
    return failed;
}

struct fabric { unsigned version; uint8_t cluster[16]; int status; uint32_t clique; unsigned state, health; };
int nvmlDeviceGetGpuFabricInfoV(device_t d, struct fabric *out) {
    int failed = chosen(d, d->fabric_state, &out->state);
    if (failed) return failed;
    out->status = SUCCESS;
    out->clique = isnan(d->fabric_clique) ? 0 : d->fabric_clique;
    for (int i = 0; i < 16; i++) sscanf(d->fabric + 2 * i, "%2hhx", &out->cluster[i]);
    return SUCCESS;
}

// -- events ------------------------------------------------------------------------------------------------

int nvmlEventSetCreate(struct event_set **out) {
    if (!state) return UNINITIALIZED;
    *out = calloc(1, sizeof **out);
    (*out)->seen = __atomic_load_n(&state->events, __ATOMIC_SEQ_CST);
    return SUCCESS;
}
int nvmlEventSetFree(struct event_set *set) { free(set); return SUCCESS; }

int nvmlDeviceRegisterEvents(device_t d, unsigned long long types, struct event_set *set) {
    int failed = checked(d);
    if (failed) return failed;
    unsigned long long supported = isnan(d->event_types) ? 0 : d->event_types;
    if (types & ~supported) return NOT_SUPPORTED;
    set->types[d - state->gpu] |= types;
    return SUCCESS;
}

struct event_data { device_t device; unsigned long long type, data; unsigned instance, compute; };

int nvmlEventSetWait_v2(struct event_set *set, struct event_data *out, unsigned timeout_ms) {
    struct timespec now, end;
    clock_gettime(CLOCK_MONOTONIC, &end);
    end.tv_sec += timeout_ms / 1000;
    end.tv_nsec += (long)(timeout_ms % 1000) * 1000000;
    if (end.tv_nsec >= 1000000000) { end.tv_sec++; end.tv_nsec -= 1000000000; }
    for (;;) {
        uint32_t all = __atomic_load_n(&state->events, __ATOMIC_SEQ_CST);
        while (set->seen != all) {
            struct event e = state->ring[set->seen++ % RING];
            if (set->types[e.gpu] & e.type) {
                *out = (struct event_data){&state->gpu[e.gpu], e.type, e.data, ~0u, ~0u};
                return SUCCESS;
            }
        }
        clock_gettime(CLOCK_MONOTONIC, &now);
        struct timespec left = {end.tv_sec - now.tv_sec, end.tv_nsec - now.tv_nsec};
        if (left.tv_nsec < 0) { left.tv_sec--; left.tv_nsec += 1000000000; }
        if (left.tv_sec < 0) return TIMEOUT;
        syscall(SYS_futex, &state->events, FUTEX_WAIT, all, &left, NULL, 0);
    }
}

// -- GPM ---------------------------------------------------------------------------------------------------

struct gpm_support { unsigned version, supported; };
int nvmlGpmQueryDeviceSupport(device_t d, struct gpm_support *out) {
    int failed = checked(d);
    if (!failed) out->supported = !isnan(d->gpm_sm);
    return failed;
}
int nvmlGpmSampleAlloc(struct sample **out) { *out = calloc(1, sizeof **out); return SUCCESS; }
int nvmlGpmSampleFree(struct sample *sample) { free(sample); return SUCCESS; }
int nvmlGpmSampleGet(device_t d, struct sample *sample) {
    int failed = checked(d);
    if (!failed && isnan(d->gpm_sm)) failed = NOT_SUPPORTED;
    if (!failed) sample->gpu = 1 + (unsigned)(d - state->gpu);
    return failed;
}

struct gpm_metric { unsigned id; int result; double value; const char *names[3]; };
struct gpm_get { unsigned version, count; struct sample *first, *second; struct gpm_metric metric[]; };
int nvmlGpmMetricsGet(struct gpm_get *get) {
    if (!get->first->gpu || get->first->gpu != get->second->gpu) return INVALID_ARGUMENT;
    device_t d = &state->gpu[get->second->gpu - 1];
    for (unsigned i = 0; i < get->count; i++) {
        struct gpm_metric *m = &get->metric[i];
        double value = m->id == 2 ? d->gpm_sm : m->id == 5 ? d->gpm_tensor : m->id == 10 ? d->gpm_memory : NAN;
        m->result = read_value(d, value, &m->value);
    }
    return checked(d);
}

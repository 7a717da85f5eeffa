/* A stand-in for libcuda.so.1, libnvidia-ml.so.1 and libnccl.so.2: GPU memory is host memory, shared between processes
   by a file. What it does wrong is in the environment: STANDIN_HANG, STANDIN_CRASH name a call; STANDIN_FAIL is CALL=NUMBER.
   STANDIN_GPUS: how many; STANDIN_FREE: MiB of each; STANDIN_PEERS, STANDIN_MANAGED: 0 for none; STANDIN_LEAST: without
   cuCheckpoint*; STANDIN_SPOIL: what is copied between GPUs arrives wrong; STANDIN_PIN: MiB that can be pinned. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static long number(const char *name, long otherwise) {
    const char *text = getenv(name);
    return text ? atol(text) : otherwise;
}

static int is(const char *name, const char *call) {
    const char *text = getenv(name);
    return text && !strcmp(text, call);
}

static int begins(const char *call) {
    const char *fail = getenv("STANDIN_FAIL");
    size_t length = strlen(call);
    if (is("STANDIN_CRASH", call)) raise(SIGSEGV);
    while (is("STANDIN_HANG", call)) sleep(1);
    return fail && !strncmp(fail, call, length) && fail[length] == '=' ? atoi(fail + length + 1) : 0;
}

#define CALL(name, ...) int name(__VA_ARGS__) { int failed = begins(#name); if (failed) return failed;
#define END return 0; }

CALL(cuInit, unsigned flags) (void)flags; if (!number("STANDIN_GPUS", 2)) return 100; END
int cuGetErrorName(int error, const char **name) {
    *name = error == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : error == 100 ? "CUDA_ERROR_NO_DEVICE"
          : error == 801 ? "CUDA_ERROR_NOT_SUPPORTED" : "CUDA_ERROR_UNKNOWN";
    return 0;
}
CALL(cuDriverGetVersion, int *version) *version = 13000; END
CALL(cuDeviceGetCount, int *count) *count = number("STANDIN_GPUS", 2); END
CALL(cuDeviceGetName, char *name, int size, int gpu) snprintf(name, size, "Stand-in %d", gpu); END
CALL(cuDeviceTotalMem_v2, size_t *total, int gpu) (void)gpu; *total = 8ul << 30; END
CALL(cuDeviceGetAttribute, int *value, int which, int gpu) (void)gpu;
    *value = which == 75 ? 9 : which == 76 ? 0 : which == 89 ? number("STANDIN_MANAGED", 1) : 1; END
CALL(cuDeviceGetPCIBusId, char *text, int size, int gpu) snprintf(text, size, "0000:%02x:00.0", gpu + 1); END
CALL(cuDevicePrimaryCtxRetain, void **context, int gpu) *context = (void *)(uintptr_t)(gpu + 1); END
CALL(cuCtxSetCurrent, void *context) (void)context; END
CALL(cuCtxSynchronize, void) END
CALL(cuMemGetInfo_v2, size_t *free, size_t *total) *free = number("STANDIN_FREE", 8192) << 20; *total = 8ul << 30; END
static char *shared_block(int fd, size_t size) { return mmap(0, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0); }
static int last_fd = -1;
CALL(cuMemAlloc_v2, uint64_t *where, size_t size) last_fd = memfd_create("gpu", 0);
    if (ftruncate(last_fd, size)) return 2; *where = (uintptr_t)shared_block(last_fd, size); END
CALL(cuMemFree_v2, uint64_t where) (void)where; END
CALL(cuMemsetD32_v2, uint64_t where, unsigned with, size_t count)
    for (size_t at = 0; at < count; at++) ((unsigned *)where)[at] = with; END
CALL(cuMemsetD32Async, uint64_t where, unsigned with, size_t count, void *stream) (void)where, (void)with, (void)count, (void)stream; END
CALL(cuMemcpyHtoD_v2, uint64_t to, const void *from, size_t size) memcpy((void *)to, from, size); END
CALL(cuMemcpyDtoH_v2, void *to, uint64_t from, size_t size) memcpy(to, (void *)from, size); END
static size_t pinned;
CALL(cuMemHostAlloc, void **where, size_t size, unsigned flags) (void)flags;
    if (pinned + size > (size_t)number("STANDIN_PIN", 65536) << 20) return 2;
    pinned += size; *where = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0); END
CALL(cuMemFreeHost, void *where) (void)where; END
CALL(cuDeviceCanAccessPeer, int *can, int one, int other) (void)one, (void)other; *can = number("STANDIN_PEERS", 1); END
CALL(cuCtxEnablePeerAccess, void *context, unsigned flags) (void)context, (void)flags; END
CALL(cuMemcpyPeer, uint64_t to, void *a, uint64_t from, void *b, size_t size) (void)a, (void)b;
    memcpy((void *)to, (void *)from, size); if (getenv("STANDIN_SPOIL")) ((char *)to)[size - 1] ^= 1; END
typedef struct { int pid, fd; char rest[56]; } ipc_handle;
CALL(cuIpcGetMemHandle, ipc_handle *handle, uint64_t where) (void)where; handle->pid = getpid(); handle->fd = last_fd; END
CALL(cuIpcOpenMemHandle_v2, uint64_t *where, ipc_handle handle, unsigned flags) (void)flags;
    char path[64]; snprintf(path, sizeof path, "/proc/%d/fd/%d", handle.pid, handle.fd);
    int fd = open(path, O_RDWR); if (fd < 0) return 201; *where = (uintptr_t)shared_block(fd, 16ul << 20); END
CALL(cuIpcCloseMemHandle, uint64_t where) (void)where; END
/* libnvcuvid.so.1: an H.264 picture whose macroblocks hold their samples as they are (I_PCM), in one slice. */
typedef struct { int codec, chroma; unsigned depth, reserved[3]; unsigned char supported, engines; unsigned short formats;
    unsigned width, height, blocks; unsigned short least[2]; unsigned char more[4]; unsigned reserved3[10]; } decode_caps;
typedef struct { unsigned long width, height, surfaces; int codec, chroma; unsigned long flags, depth, intra, most[2], reserved;
    short display[4]; int output, deinterlace; unsigned long target_width, target_height, outputs; void *lock; short target[4];
    unsigned long histogram, reserved2[4]; } decoder_info;
typedef struct { int codec; unsigned rate[2]; unsigned char progressive, luma, chroma_depth, surfaces; unsigned width, height;
    int area[4], chroma; unsigned bitrate; int aspect[2]; unsigned char signal[4]; unsigned length; } video_format;
typedef struct { int index, progressive, top, repeat; long long time; } shown;
typedef struct { int codec; unsigned most, clock, errors, delay, flags, reserved[4]; void *user; int (*sequence)(void *, video_format *);
    int (*decode)(void *, void *); int (*display)(void *, shown *); void *reserved2[7], *more; } parser_info;
typedef struct { unsigned long flags, size; const unsigned char *data; long long time; } packet;
enum { SIDE = 128, PITCH = 512 };
static parser_info parser; static unsigned char *picture;
CALL(cuvidGetDecoderCaps, decode_caps *caps) caps->supported = number("STANDIN_DECODES", 1) && caps->codec == 4 && caps->chroma == 1;
    caps->engines = 7; END
CALL(cuvidCreateVideoParser, void **made, parser_info *info) parser = *info; *made = &parser; if (info->codec != 4) return 801; END
CALL(cuvidDestroyVideoParser, void *made) (void)made; END
CALL(cuvidCreateDecoder, void **made, decoder_info *info) *made = &picture;
    if (info->width != SIDE || info->target_height != SIDE || info->codec != 4 || info->chroma != 1 || info->flags != 4
        || info->outputs != 1 || info->display[2] != SIDE || info->surfaces < 4) return 1;
    picture = calloc(PITCH, SIDE * 3 / 2); END
CALL(cuvidDestroyDecoder, void *made) (void)made; END
CALL(cuvidDecodePicture, void *made, void *what) if (made != &picture || !what) return 1;
    const unsigned char *in = what;
    for (int block = 0; block < SIDE / 16 * SIDE / 16; block++) {
        int down = block / (SIDE / 16), right = block % (SIDE / 16);
        for (int at = 0; at < 256; at++) picture[(down * 16 + at / 16) * PITCH + right * 16 + at % 16] = *in++;
        for (int at = 0; at < 128; at++)
            picture[(SIDE + down * 8 + at % 64 / 8) * PITCH + right * 16 + at % 8 * 2 + at / 64] = *in++;
        in += 2;
    }
    if (getenv("STANDIN_SPOIL")) picture[PITCH + 1] ^= 1; END
CALL(cuvidParseVideoData, void *made, packet *given) if (made != &parser) return 1;
    if (given->flags & 1) { shown what = {0, 1, 0, 0, 0}; return parser.display(parser.user, &what) ? 0 : 1; }
    const unsigned char *slice = memmem(given->data, given->size, "\0\0\0\1\x65", 5);
    video_format format = {.codec = 4, .surfaces = 1, .width = SIDE, .height = SIDE};
    if (!slice || !parser.sequence(parser.user, &format) || !parser.decode(parser.user, (void *)(slice + 9))) return 1; END
CALL(cuvidMapVideoFrame64, void *made, int index, uint64_t *where, unsigned *pitch, int *how)
    if (made != &picture || index || how[0] != 1) return 1; *where = (uintptr_t)picture; *pitch = PITCH; END
CALL(cuvidUnmapVideoFrame64, void *made, uint64_t where) if (made != &picture || where != (uintptr_t)picture) return 1; END
CALL(cuMemGetAllocationGranularity, size_t *step, const void *how, int which) (void)how, (void)which; *step = 2ul << 20; END
CALL(cuMemCreate, uint64_t *handle, size_t size, const void *how, unsigned long long flags) (void)how, (void)flags;
    *handle = memfd_create("gpu", 0); if (ftruncate(*handle, size)) return 2; END
CALL(cuMemExportToShareableHandle, int *fd, uint64_t handle, int type, unsigned long long flags) (void)type, (void)flags; *fd = dup(handle); END
CALL(cuMemImportFromShareableHandle, uint64_t *handle, void *fd, int type) (void)type; *handle = (uintptr_t)fd; END
CALL(cuMemAddressReserve, uint64_t *where, size_t size, size_t a, uint64_t b, unsigned long long c) (void)a, (void)b, (void)c;
    *where = (uintptr_t)mmap(0, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); END
CALL(cuMemMap, uint64_t where, size_t size, size_t offset, uint64_t handle, unsigned long long flags) (void)offset, (void)flags;
    mmap((void *)where, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, handle, 0); END
CALL(cuMemSetAccess, uint64_t where, size_t size, const void *access, size_t count) (void)where, (void)size, (void)access, (void)count; END
CALL(cuMemAllocManaged, uint64_t *where, size_t size, unsigned flags) (void)flags; *where = (uintptr_t)malloc(size); END
CALL(cuStreamCreate, void **stream, unsigned flags) (void)flags; *stream = (void *)1; END
CALL(cuStreamQuery, void *stream) (void)stream; return 600; END
CALL(cuStreamSynchronize, void *stream) (void)stream; END
#ifndef LEAST
CALL(cuCheckpointProcessLock, int pid, void *arguments) (void)pid, (void)arguments; END
CALL(cuCheckpointProcessCheckpoint, int pid, void *arguments) (void)pid, (void)arguments; END
CALL(cuCheckpointProcessRestore, int pid, void *arguments) (void)pid, (void)arguments; END
CALL(cuCheckpointProcessUnlock, int pid, void *arguments) (void)pid, (void)arguments; END
#endif

CALL(nvmlInit_v2, void) END
CALL(nvmlSystemGetDriverVersion, char *text, unsigned size) snprintf(text, size, "591.59"); END
CALL(nvmlDeviceGetHandleByPciBusId_v2, const char *location, void **gpu) (void)location; *gpu = (void *)1; END
CALL(nvmlDeviceGetMemoryInfo, void *gpu, unsigned long long *memory) (void)gpu;
    memory[0] = 8ull << 30; memory[1] = (unsigned long long)number("STANDIN_FREE", 8192) << 20; memory[2] = 0; END
CALL(nvmlDeviceGetNvLinkState, void *gpu, unsigned link, int *up) (void)gpu; *up = link < 4; END

typedef struct { char internal[128]; } nccl_id;
CALL(ncclGetVersion, int *version) *version = 22803; END
CALL(ncclGetUniqueId, nccl_id *id) memset(id, 7, sizeof *id); END
CALL(ncclCommInitRank, void **comm, int ranks, nccl_id id, int rank) *comm = (void *)(uintptr_t)ranks;
    const char *log = getenv("NCCL_DEBUG_FILE"); char path[256]; snprintf(path, sizeof path, "%.*s%d", (int)strcspn(log, "%"), log, getpid());
    FILE *file = fopen(path, "w"); fprintf(file, "x:1 [0] NCCL INFO Channel 00 : %d[0] -> 1[1] via SHM/direct/direct\n", rank); fclose(file);
    if (id.internal[127] != 7) return 5; END
CALL(ncclAllReduce, const float *from, float *to, size_t count, int type, int op, void *comm, void *stream) (void)type, (void)op, (void)stream;
    float ranks = (float)(uintptr_t)comm; if (to[count - 1] != ranks) for (size_t at = 0; at < count; at++) to[at] = from[at] * ranks; END

// Device and pinned memory, and copies.
//
// Memory fresh from the driver holds 0xFF: NaN as a float, -1 as an integer.
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "runtime.h"

namespace soft {

using Registry = std::map<uintptr_t, size_t>;
static Registry device_memory, pinned_memory;
static size_t used = 0;

size_t device_bytes_total() {
  static size_t total = static_cast<size_t>(setting("SOFTNPU_MEM_GB", 32)) << 30;
  return total;
}
size_t device_bytes_used() { return used; }

static uintptr_t key(const void* address) { return reinterpret_cast<uintptr_t>(address); }

static bool contains(const Registry& registry, const void* address) {
  auto after = registry.upper_bound(key(address));
  if (after == registry.begin()) return false;
  auto block = std::prev(after);
  return key(address) < block->first + block->second;
}

static bool is_pinned(const void* address) { return contains(pinned_memory, address); }

static aclError reserve_device_bytes(size_t bytes) {
  if (used + bytes > device_bytes_total()) return fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "device memory is exhausted");
  used += bytes;
  return ACL_SUCCESS;
}

static aclError allocate(void** address, size_t bytes, bool device) {
  LOCK;
  bytes = std::max<size_t>(512, (bytes + 511) / 512 * 512);
  if (device)
    if (auto error = reserve_device_bytes(bytes)) return error;
  if (posix_memalign(address, 512, bytes)) return fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "the host has no memory left");
  memset(*address, device ? 0xFF : 0, bytes);
  (device ? device_memory : pinned_memory)[key(*address)] = bytes;
  return ACL_SUCCESS;
}

static aclError release(void* address, bool device) {
  LOCK;
  auto& registry = device ? device_memory : pinned_memory;
  auto block = registry.find(key(address));
  if (block == registry.end()) return fail(ACL_ERROR_RT_PARAM_INVALID, "free of an unknown address");
  if (device) used -= block->second;
  registry.erase(block);
  free(address);
  return ACL_SUCCESS;
}

}  // namespace soft
using namespace soft;

extern "C" {

aclError aclrtGetMemInfo(aclrtMemAttr, size_t* free_bytes, size_t* total) {
  LOCK;
  *total = device_bytes_total();
  *free_bytes = *total > used ? *total - used : 0;
  return ACL_SUCCESS;
}
aclError aclrtMalloc(void** address, size_t bytes, aclrtMemMallocPolicy) {
  TRACE("%zu", bytes);
  return allocate(address, bytes, true);
}
aclError aclrtMallocAlign32(void** address, size_t bytes, aclrtMemMallocPolicy) {
  TRACE("%zu", bytes);
  return allocate(address, bytes, true);
}
aclError aclrtFree(void* address) {
  TRACE();
  {
    LOCK;
    drain_for(static_cast<Stream*>(nullptr));  // the driver's free waits for the device
  }
  return release(address, true);
}
aclError aclrtMallocHost(void** address, size_t bytes) {
  TRACE("%zu", bytes);
  return allocate(address, bytes, false);
}
aclError aclrtFreeHost(void* address) {
  TRACE();
  return release(address, false);
}
ACCEPT(aclrtHostUnregister, void*)
aclError aclrtHostRegister(void* host, uint64_t, aclrtHostRegisterType, void** device) {
  *device = host;
  return ACL_SUCCESS;
}

// Virtual memory, which torch_npu's expandable segments use.
aclError aclrtReserveMemAddress(void** address, size_t bytes, size_t, void*, uint64_t) {
  TRACE("%zu", bytes);
  LOCK;
  *address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (*address == MAP_FAILED) return fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "no address range is left");
  device_memory[key(*address)] = bytes;
  return ACL_SUCCESS;
}
aclError aclrtReleaseMemAddress(void* address) {
  LOCK;
  auto block = device_memory.find(key(address));
  if (block != device_memory.end()) {
    munmap(address, block->second);
    device_memory.erase(block);
  }
  return ACL_SUCCESS;
}
aclError aclrtMallocPhysical(aclrtDrvMemHandle* handle, size_t bytes, const aclrtPhysicalMemProp*, uint64_t) {
  TRACE("%zu", bytes);
  LOCK;
  if (auto error = reserve_device_bytes(bytes)) return error;
  *handle = new size_t(bytes);
  return ACL_SUCCESS;
}
aclError aclrtFreePhysical(aclrtDrvMemHandle handle) {
  LOCK;
  auto bytes = static_cast<size_t*>(handle);
  used -= *bytes;
  delete bytes;
  return ACL_SUCCESS;
}
aclError aclrtMapMem(void* address, size_t bytes, size_t, aclrtDrvMemHandle, uint64_t) {
  TRACE("%zu", bytes);
  memset(address, 0xFF, bytes);
  return ACL_SUCCESS;
}
ACCEPT(aclrtUnmapMem, void*)
ACCEPT(aclrtMemExportToShareableHandle, aclrtDrvMemHandle, aclrtMemHandleType, uint64_t, uint64_t*)
ACCEPT(aclrtMemImportFromShareableHandle, uint64_t, int32_t, aclrtDrvMemHandle*)
ACCEPT(aclrtMemSetPidToShareableHandle, uint64_t, int32_t*, size_t)

aclError aclrtPointerGetAttributes(const void* address, aclrtPtrAttributes* attributes) {
  LOCK;
  memset(attributes, 0, sizeof *attributes);
  attributes->location.type = contains(device_memory, address)   ? ACL_MEM_LOCATION_TYPE_DEVICE
                              : contains(pinned_memory, address) ? ACL_MEM_LOCATION_TYPE_HOST
                                                                 : ACL_MEM_LOCATION_TYPE_UNREGISTERED;
  return ACL_SUCCESS;
}

aclError aclrtMemcpy(void* to, size_t, const void* from, size_t bytes, aclrtMemcpyKind kind) {
  TRACE("%zu kind %d", bytes, kind);
  LOCK;
  if (auto error = refuse_while_capturing("aclrtMemcpy")) return error;
  if (auto error = synchronise(stream_of(nullptr), "aclrtMemcpy")) return error;
  memcpy(to, from, bytes);
  return ACL_SUCCESS;
}
aclError aclrtMemset(void* address, size_t, int32_t value, size_t bytes) {
  TRACE();
  LOCK;
  if (auto error = refuse_while_capturing("aclrtMemset")) return error;
  memset(address, value, bytes);
  return ACL_SUCCESS;
}
aclError aclrtMemcpyAsync(void* to, size_t, const void* from, size_t bytes, aclrtMemcpyKind kind, aclrtStream handle) {
  TRACE("%zu kind %d stream %d", bytes, kind, stream_of(handle)->id);
  LOCK;
  bool from_host = kind == ACL_MEMCPY_HOST_TO_DEVICE, to_host = kind == ACL_MEMCPY_DEVICE_TO_HOST;
  const void* host = from_host ? from : to;
  if (Model* model = stream_of(handle)->capture; model && (from_host || to_host) && !is_pinned(host)) {
    model->invalid = true;
    return fail(ACL_ERROR_RT_CAPTURE_MODE_BLOCK_ASYNC, "copy from or to pageable host memory in a captured stream");
  }
  if (from_host && !is_pinned(host)) {  // the driver stages a pageable source before it returns
    auto staged = std::make_shared<std::string>(static_cast<const char*>(from), bytes);
    return run(handle, "memcpy", [=] { memcpy(to, staged->data(), bytes); });
  }
  return run(handle, "memcpy", [=] { memmove(to, from, bytes); });
}
aclError aclrtMemsetAsync(void* address, size_t, int32_t value, size_t bytes, aclrtStream stream) {
  TRACE("%zu stream %d", bytes, stream_of(stream)->id);
  return run(stream, "memset", [=] { memset(address, value, bytes); });
}
}

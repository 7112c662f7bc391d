// The process, its devices, versions, limits and errors.
#include <pthread.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "runtime.h"

namespace soft {

static thread_local int device = -1;
static thread_local std::string message;
static thread_local aclError last_error = ACL_SUCCESS;
static int context = 1;
static uint32_t resource_limits[8] = {24, 48, 24, 24, 24, 24, 24, 24};

aclError fail(aclError code, const std::string& text) {
  message = "[softnpu] " + text;
  last_error = code;
  if (tracing()) std::fprintf(trace_file(), "[acl]   -> error %d: %s\n", code, message.c_str());
  return code;
}

int setting(const char* name, int fallback) {
  const char* value = getenv(name);
  return value ? atoi(value) : fallback;
}

bool tracing() {
  static bool on = setting("SOFTNPU_TRACE", 0) != 0;
  return on;
}

FILE* trace_file() {
  static FILE* file = [] {
    const char* path = getenv("SOFTNPU_TRACE_FILE");
    FILE* opened = path ? fopen(path, "a") : nullptr;
    return opened ? opened : stderr;
  }();
  return file;
}

uint64_t thread_id() { return static_cast<uint64_t>(pthread_self()); }

static const char* cann_version() {
  const char* value = getenv("SOFTNPU_CANN");
  return value ? value : "8.5.0";
}

}  // namespace soft
using namespace soft;

extern "C" {

aclError aclInit(const char* config) {
  TRACE("%s", config ? config : "");
  strict_waits(setting("SOFTNPU_STRICT_EVENTS", 1) != 0);
  lazy(setting("SOFTNPU_LAZY", 0));
  return ACL_SUCCESS;
}
ACCEPT(aclFinalize)
const char* aclGetRecentErrMsg() { return message.empty() ? nullptr : message.c_str(); }
void aclAppLog(aclLogLevel, const char*, const char*, uint32_t, const char*, ...) {}
aclError aclrtGetLastError(aclrtLastErrLevel) {
  aclError error = last_error;
  last_error = ACL_SUCCESS;
  return error;
}
aclError aclrtPeekAtLastError(aclrtLastErrLevel) { return last_error; }

const char* aclrtGetSocName() {
  TRACE();
  const char* value = getenv("SOFTNPU_SOC");
  return value ? value : "Ascend910B1";
}
aclError aclrtGetDeviceCount(uint32_t* count) {
  TRACE();
  *count = setting("SOFTNPU_DEVICES", 1);
  return ACL_SUCCESS;
}
aclError aclrtSetDevice(int32_t wanted) {
  TRACE("%d", wanted);
  device = wanted;
  return ACL_SUCCESS;
}
ACCEPT(aclrtResetDevice, int32_t)
aclError aclrtGetDevice(int32_t* current) {
  if (device < 0) return fail(ACL_ERROR_RT_CONTEXT_NULL, "no device is set in this thread");
  *current = device;
  return ACL_SUCCESS;
}
aclError aclrtGetCurrentContext(aclrtContext* current) {
  *current = device < 0 ? nullptr : &context;
  return device < 0 ? ACL_ERROR_RT_CONTEXT_NULL : ACL_SUCCESS;
}
aclError aclrtSetCurrentContext(aclrtContext) {
  if (device < 0) device = 0;
  return ACL_SUCCESS;
}
aclError aclrtGetPrimaryCtxState(int32_t, uint32_t* flags, int32_t* active) {
  if (flags) *flags = 0;
  *active = device >= 0;
  return ACL_SUCCESS;
}
aclError aclGetDeviceCapability(uint32_t, aclDeviceInfo info, int64_t* value) {
  TRACE("%d", static_cast<int>(info));
  *value = info == 0 ? 24 : 48;
  return ACL_SUCCESS;
}
aclError aclrtGetDeviceInfo(uint32_t, aclrtDevAttr attribute, int64_t* value) {
  TRACE("%d", static_cast<int>(attribute));
  switch (attribute) {
    case ACL_DEV_ATTR_TOTAL_GLOBAL_MEM_SIZE: *value = device_bytes_total(); break;
    case ACL_DEV_ATTR_VECTOR_CORE_NUM: *value = 48; break;
    case ACL_DEV_ATTR_L2_CACHE_SIZE: *value = 192 << 20; break;
    default: *value = 24;
  }
  return ACL_SUCCESS;
}
aclError aclrtDeviceCanAccessPeer(int32_t* can, int32_t, int32_t) {
  *can = 1;
  return ACL_SUCCESS;
}
ACCEPT(aclrtDeviceEnablePeerAccess, int32_t, uint32_t)
aclError aclrtDeviceGetBareTgid(int32_t* process) {
  *process = getpid();
  return ACL_SUCCESS;
}
aclError aclrtGetLogicDevIdByUserDevId(const int32_t user, int32_t* const logical) {
  *logical = user;
  return ACL_SUCCESS;
}
aclError aclsysGetVersionStr(char* package, char* version) {
  TRACE("%s", package);
  strcpy(version, strcmp(package, "driver") ? cann_version() : "25.3.0");
  return ACL_SUCCESS;
}
aclError aclsysGetCANNVersion(aclCANNPackageName name, aclCANNPackageVersion* version) {
  TRACE("%d", static_cast<int>(name));
  memset(version, 0, sizeof *version);
  strcpy(version->version, name == ACL_PKG_NAME_DRIVER ? "25.3.0" : cann_version());
  return ACL_SUCCESS;
}

ACCEPT(aclrtSetDeviceSatMode, aclrtFloatOverflowMode)
ACCEPT(aclrtSetOpWaitTimeout, uint32_t)
ACCEPT(aclrtSetOpExecuteTimeOut, uint32_t)
ACCEPT(aclrtCtxSetSysParamOpt, aclSysParamOpt, int64_t)
ACCEPT(aclrtSetSysParamOpt, aclSysParamOpt, int64_t)
aclError aclrtGetSysParamOpt(aclSysParamOpt, int64_t* value) {
  *value = 0;
  return ACL_SUCCESS;
}
aclError aclrtGetDeviceResLimit(int32_t, aclrtDevResLimitType type, uint32_t* value) {
  *value = resource_limits[type & 7];
  return ACL_SUCCESS;
}
aclError aclrtSetDeviceResLimit(int32_t, aclrtDevResLimitType type, uint32_t value) {
  resource_limits[type & 7] = value;
  return ACL_SUCCESS;
}
ACCEPT(aclrtResetDeviceResLimit, int32_t)
aclError aclrtGetStreamResLimit(aclrtStream, aclrtDevResLimitType type, uint32_t* value) {
  *value = resource_limits[type & 7];
  return ACL_SUCCESS;
}
ACCEPT(aclrtSetStreamResLimit, aclrtStream, aclrtDevResLimitType, uint32_t)
ACCEPT(aclrtResetStreamResLimit, aclrtStream)
ACCEPT(aclrtUseStreamResInCurrentThread, aclrtStream)
ACCEPT(aclrtUnuseStreamResInCurrentThread, aclrtStream)
aclError aclrtGetResInCurrentThread(aclrtDevResLimitType type, uint32_t* value) {
  *value = resource_limits[type & 7];
  return ACL_SUCCESS;
}
ACCEPT(aclmdlInitDump)
ACCEPT(aclmdlFinalizeDump)
ACCEPT(aclmdlSetDump, const char*)
}

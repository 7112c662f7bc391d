// What the Python side calls, and the old "aclop" kernels, which have no implementation here.
#include "acl/acl_op_compiler.h"
#include "runtime.h"

using namespace soft;

namespace {
enum What { kRun = 0, kRelease = 1 };
using Callback = void (*)(uint64_t id, int what);
Callback callback = nullptr;

void call(uint64_t id, What what) {
  if (callback) callback(id, what);
}
}  // namespace

extern "C" {

void soft_set_callback(Callback fn) { callback = fn; }

// Puts kernel `id` on a stream. The callback runs it; it is released when no queue or graph holds it.
int soft_launch(aclrtStream stream, uint64_t id, const char* name) {
  std::shared_ptr<void> held(nullptr, [id](void*) { call(id, kRelease); });
  return run(stream, name, [held, id] { call(id, kRun); });
}
int soft_is_capturing(aclrtStream stream) {
  LOCK;
  return stream_of(stream)->capture != nullptr;
}
// Invalidates the capture of a stream with an error of the caller's.
int soft_fail_capture(aclrtStream stream, int code, const char* reason) {
  LOCK;
  if (auto model = stream_of(stream)->capture) model->invalid = true;
  return fail(code, reason);
}
void soft_strict_waits(int on) {
  LOCK;
  strict_waits(on != 0);
}
int soft_lazy(int seed) {
  LOCK;
  return lazy(seed);
}
int soft_pending() {
  LOCK;
  int pending = 0;
  for (auto stream : streams) pending += stream->queue.size();
  return pending;
}
size_t soft_used() {
  LOCK;
  return device_bytes_used();
}

ACCEPT(aclSetCompileopt, aclCompileOpt, const char*)
size_t aclGetCompileoptSize(aclCompileOpt) { return 1; }
aclError aclGetCompileopt(aclCompileOpt, char* value, size_t size) {
  if (size) value[0] = 0;
  return ACL_SUCCESS;
}
static aclError no_kernel(const char* op) {
  return fail(ACL_ERROR_OP_NOT_FOUND, std::string("aclop kernel ") + op + " has no software implementation");
}
aclError aclopCompileAndExecute(const char* op, int, const aclTensorDesc* const[], const aclDataBuffer* const[], int,
                                const aclTensorDesc* const[], aclDataBuffer* const[], const aclopAttr*, aclopEngineType,
                                aclopCompileType, const char*, aclrtStream) {
  return no_kernel(op);
}
aclError aclopCompileAndExecuteV2(const char* op, int, aclTensorDesc*[], aclDataBuffer*[], int, aclTensorDesc*[],
                                  aclDataBuffer*[], aclopAttr*, aclopEngineType, aclopCompileType, const char*,
                                  aclrtStream) {
  return no_kernel(op);
}
}

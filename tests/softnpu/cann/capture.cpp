// Captured graphs ("model run instances"): capture, replay, task groups and their updates.
//
// Which calls a capture refuses follows the ACL error codes and what torch_npu itself calls; no hardware was
// asked. A refused call invalidates the capture.
#include <algorithm>

#include "runtime.h"

namespace soft {

std::set<Model*> capturing;
static std::map<uint64_t, std::shared_ptr<Group>> groups;
static uint32_t next_model = 1;
static uint64_t next_group = 1;
static thread_local aclmdlRICaptureMode thread_mode = ACL_MODEL_RI_CAPTURE_MODE_GLOBAL;

// For an operation that blocks the host, or is otherwise unsafe, while somebody captures.
aclError refuse_while_capturing(const char* who) {
  for (auto model : capturing) {
    if (model->mode == ACL_MODEL_RI_CAPTURE_MODE_RELAXED || thread_mode == ACL_MODEL_RI_CAPTURE_MODE_RELAXED) continue;
    if (model->mode == ACL_MODEL_RI_CAPTURE_MODE_THREAD_LOCAL && model->thread != thread_id()) continue;
    model->invalid = true;
    return fail(ACL_ERROR_RT_CAPTURE_MODE_NOT_SUPPORT, std::string(who) + " is not allowed while a stream is captured");
  }
  return ACL_SUCCESS;
}

static std::shared_ptr<Group> find_group(aclrtTaskGrp handle) {
  auto found = groups.find(reinterpret_cast<uintptr_t>(handle));
  return found == groups.end() ? nullptr : found->second;
}

// Why the tasks of an update can't take the place of a group's; empty if they can.
static std::string mismatch(const std::vector<TaskPtr>& update, const std::vector<TaskPtr>& group) {
  if (update.size() != group.size())
    return "the update launched " + std::to_string(update.size()) + " tasks, the group has " +
           std::to_string(group.size());
  for (size_t i = 0; i < update.size(); i++)
    if (update[i]->name != group[i]->name)
      return "the update launched " + update[i]->name + " where the group has " + group[i]->name;
  return "";
}

static void print_names(FILE* file, const std::vector<TaskPtr>& tasks, const char*& separator) {
  for (auto& task : tasks) {
    if (task->group) {
      print_names(file, task->group->tasks, separator);
      continue;
    }
    std::fprintf(file, "%s{\"name\":\"%s\",\"kind\":%d}", separator, task->name.c_str(), static_cast<int>(task->kind));
    separator = ",\n";
  }
}

}  // namespace soft
using namespace soft;

extern "C" {

aclError aclmdlRICaptureBegin(aclrtStream handle, aclmdlRICaptureMode mode) {
  TRACE("stream %d mode %d", stream_of(handle)->id, static_cast<int>(mode));
  LOCK;
  Stream* stream = stream_of(handle);
  if (!handle) return fail(ACL_ERROR_RT_STREAM_CAPTURE_IMPLICIT, "the default stream can't be captured");
  if (stream->capture) return fail(ACL_ERROR_RT_STREAM_CAPTURED, "the stream is captured already");
  auto model = new Model;
  model->id = next_model++;
  model->origin = stream;
  model->mode = mode;
  model->thread = thread_id();
  model->joined.insert(stream);
  stream->capture = model;
  capturing.insert(model);
  return ACL_SUCCESS;
}

aclError aclmdlRICaptureEnd(aclrtStream handle, aclmdlRI* out) {
  TRACE("stream %d", stream_of(handle)->id);
  LOCK;
  Stream* origin = stream_of(handle);
  *out = nullptr;
  Model* model = origin->capture;
  if (!model) return fail(ACL_ERROR_RT_STREAM_NOT_CAPTURED, "the stream is not captured");
  if (model->origin != origin) return fail(ACL_ERROR_RT_STREAM_CAPTURE_UNMATCHED, "the capture began on another stream");
  bool group_open = origin->open_group != nullptr;
  bool unjoined = std::any_of(model->joined.begin(), model->joined.end(), [&](Stream* stream) {
    return stream != origin && origin->clock[stream] < stream->clock[stream];
  });
  for (auto stream : model->joined) {
    stream->capture = nullptr;
    stream->open_group.reset();
    stream->clock.clear();
  }
  model->done = true;
  capturing.erase(model);
  if (model->invalid) {
    const char* reason = aclGetRecentErrMsg();
    return fail(ACL_ERROR_RT_STREAM_CAPTURE_INVALIDATED,
                std::string("the capture was invalidated: ") + (reason ? reason : ""));
  }
  if (group_open) return fail(ACL_ERROR_STREAM_TASK_GROUP_INTR, "a task group is still open");
  if (unjoined) return fail(ACL_ERROR_RT_STREAM_UNJOINED, "a forked stream was not joined before the capture's end");
  *out = model;
  return ACL_SUCCESS;
}

aclError aclmdlRICaptureGetInfo(aclrtStream handle, aclmdlRICaptureStatus* status, aclmdlRI* out) {
  LOCK;
  Model* model = stream_of(handle)->capture;
  *status = !model           ? ACL_MODEL_RI_CAPTURE_STATUS_NONE
            : model->invalid ? ACL_MODEL_RI_CAPTURE_STATUS_INVALIDATED
                             : ACL_MODEL_RI_CAPTURE_STATUS_ACTIVE;
  if (out) *out = model;
  return ACL_SUCCESS;
}
aclError aclmdlRIGetId(aclmdlRI handle, uint32_t* id) {
  *id = static_cast<Model*>(handle)->id;
  return ACL_SUCCESS;
}
aclError aclmdlRICaptureThreadExchangeMode(aclmdlRICaptureMode* mode) {
  TRACE("%d", static_cast<int>(*mode));
  std::swap(*mode, thread_mode);
  return ACL_SUCCESS;
}

aclError aclmdlRIExecuteAsync(aclmdlRI handle, aclrtStream stream_handle) {
  auto model = static_cast<Model*>(handle);
  TRACE("model %u stream %d", model->id, stream_of(stream_handle)->id);
  LOCK;
  Stream* stream = stream_of(stream_handle);
  if (stream->capture) return fail(ACL_ERROR_RT_STREAM_CAPTURED, "replay inside a capture");
  stream->queue.insert(stream->queue.end(), model->tasks.begin(), model->tasks.end());
  drain_what_can_run();
  return ACL_SUCCESS;
}
aclError aclmdlRIExecute(aclmdlRI handle, int32_t) {
  if (auto error = aclmdlRIExecuteAsync(handle, nullptr)) return error;
  return aclrtSynchronizeStream(nullptr);
}
aclError aclmdlRIDestroy(aclmdlRI handle) {
  auto model = static_cast<Model*>(handle);
  TRACE("model %u", model->id);
  LOCK;
  for (auto& group : model->groups) {
    groups.erase(group->id);
    group->tasks.clear();
  }
  model->groups.clear();
  model->tasks.clear();
  return ACL_SUCCESS;
}
ACCEPT(aclmdlRIDebugPrint, aclmdlRI)
aclError aclmdlRIDebugJsonPrint(aclmdlRI handle, const char* path, uint32_t) {
  LOCK;
  FILE* file = fopen(path, "w");
  if (!file) return fail(ACL_ERROR_RT_FILE_OPEN, path);
  const char* separator = "";
  std::fputs("[", file);
  print_names(file, static_cast<Model*>(handle)->tasks, separator);
  std::fputs("]\n", file);
  fclose(file);
  return ACL_SUCCESS;
}

aclError aclmdlRICaptureTaskGrpBegin(aclrtStream handle) {
  TRACE("stream %d", stream_of(handle)->id);
  LOCK;
  Stream* stream = stream_of(handle);
  if (!stream->capture) return fail(ACL_ERROR_RT_STREAM_NOT_CAPTURED, "task group outside a capture");
  if (stream->open_group) return fail(ACL_ERROR_STREAM_TASK_GROUP_STATUS, "a task group is open already");
  stream->open_group = std::make_shared<Group>();
  stream->open_group->id = next_group++;
  return ACL_SUCCESS;
}
aclError aclmdlRICaptureTaskGrpEnd(aclrtStream handle, aclrtTaskGrp* out) {
  TRACE("stream %d", stream_of(handle)->id);
  LOCK;
  Stream* stream = stream_of(handle);
  if (!stream->capture || !stream->open_group) return fail(ACL_ERROR_STREAM_TASK_GROUP_STATUS, "no task group is open");
  auto task = std::make_shared<Task>();
  task->kind = Kind::Group;
  task->name = "group";
  task->group = std::move(stream->open_group);
  stream->open_group.reset();
  stream->capture->tasks.push_back(task);
  stream->capture->groups.push_back(task->group);
  groups[task->group->id] = task->group;
  *out = reinterpret_cast<aclrtTaskGrp>(static_cast<uintptr_t>(task->group->id));
  return ACL_SUCCESS;
}
aclError aclmdlRICaptureTaskUpdateBegin(aclrtStream handle, aclrtTaskGrp group_handle) {
  TRACE("stream %d", stream_of(handle)->id);
  LOCK;
  Stream* stream = stream_of(handle);
  auto group = find_group(group_handle);
  if (!group) return fail(ACL_ERROR_STREAM_TASK_GROUP_STATUS, "unknown task group (was its graph destroyed?)");
  if (stream->capture) return fail(ACL_ERROR_RT_STREAM_CAPTURED, "update on a captured stream");
  if (stream->updated_group) return fail(ACL_ERROR_STREAM_TASK_GROUP_STATUS, "an update is open on this stream");
  stream->updated_group = group;
  stream->update.clear();
  return ACL_SUCCESS;
}
aclError aclmdlRICaptureTaskUpdateEnd(aclrtStream handle) {
  TRACE("stream %d", stream_of(handle)->id);
  LOCK;
  Stream* stream = stream_of(handle);
  if (!stream->updated_group) return fail(ACL_ERROR_STREAM_TASK_GROUP_STATUS, "no update is open");
  auto group = std::move(stream->updated_group);
  auto update = std::move(stream->update);
  stream->updated_group.reset();
  stream->update.clear();
  auto wrong = mismatch(update, group->tasks);
  if (!wrong.empty()) return fail(ACL_ERROR_RT_MODEL_UPDATE_FAILED, wrong);
  // An update is ordered on its own stream: it takes effect when that stream gets to it.
  auto task = std::make_shared<Task>();
  task->name = "update";
  task->fn = [group, update] { group->tasks = update; };
  enqueue(stream, task);
  return ACL_SUCCESS;
}
}

// Streams, events and value waits.
#include <unistd.h>

#include <algorithm>

#include "runtime.h"

namespace soft {

static int next_stream = 1;

static aclError new_stream(aclrtStream* handle) {
  LOCK;
  auto stream = new Stream;
  stream->id = next_stream++;
  streams.insert(stream);
  *handle = stream;
  return ACL_SUCCESS;
}

static aclError new_event(aclrtEvent* handle, uint32_t flags) {
  auto event = new Event;
  event->flags = flags;
  *handle = event;
  return ACL_SUCCESS;
}

static TaskPtr event_task(Kind kind, Event* event, uint64_t version, bool external) {
  auto task = std::make_shared<Task>();
  task->kind = kind;
  task->name = "event";
  task->event = event;
  task->version = version;
  task->external = external;
  return task;
}

static aclError synchronise_stream(aclrtStream handle, const char* who) {
  LOCK;
  Stream* stream = stream_of(handle);
  if (stream->capture) {
    stream->capture->invalid = true;
    return fail(ACL_ERROR_RT_STREAM_CAPTURED, std::string(who) + " on a captured stream");
  }
  if (auto error = refuse_while_capturing(who)) return error;
  return synchronise(stream, who);
}

static aclError synchronise_device(const char* who) {
  LOCK;
  if (auto error = refuse_while_capturing(who)) return error;
  return synchronise(nullptr, who);
}

// A captured stream's event makes the waiting stream part of the same capture.
static void join_capture(Stream* stream, Event* event) {
  if (!stream->capture) {
    stream->capture = event->capture;
    event->capture->joined.insert(stream);
    stream->clock.clear();
  }
  for (auto& [other, task] : event->clock) stream->clock[other] = std::max(stream->clock[other], task);
}

}  // namespace soft
using namespace soft;

extern "C" {

aclError aclrtCreateStream(aclrtStream* handle) {
  TRACE();
  return new_stream(handle);
}
aclError aclrtCreateStreamWithConfig(aclrtStream* handle, uint32_t priority, uint32_t flags) {
  TRACE("priority %u flags %u", priority, flags);
  return new_stream(handle);
}
aclError aclrtDestroyStream(aclrtStream handle) {
  TRACE();
  LOCK;
  if (!handle || !streams.count(stream_of(handle))) return fail(ACL_ERROR_RT_PARAM_INVALID, "unknown stream");
  streams.erase(stream_of(handle));
  delete stream_of(handle);
  return ACL_SUCCESS;
}
aclError aclrtDestroyStreamForce(aclrtStream handle) { return aclrtDestroyStream(handle); }
aclError aclrtStreamGetId(aclrtStream handle, int32_t* id) {
  *id = stream_of(handle)->id;
  return ACL_SUCCESS;
}
aclError aclrtStreamQuery(aclrtStream handle, aclrtStreamStatus* status) {
  LOCK;
  if (stream_of(handle)->capture) return fail(ACL_ERROR_RT_STREAM_CAPTURED, "query of a captured stream");
  drain_what_can_run();
  *status = stream_of(handle)->queue.empty() ? ACL_STREAM_STATUS_COMPLETE : ACL_STREAM_STATUS_NOT_READY;
  return ACL_SUCCESS;
}
aclError aclrtSynchronizeStream(aclrtStream handle) {
  TRACE("stream %d", stream_of(handle)->id);
  return synchronise_stream(handle, "aclrtSynchronizeStream");
}
aclError aclrtSynchronizeStreamWithTimeout(aclrtStream handle, int32_t) {
  TRACE("stream %d", stream_of(handle)->id);
  return synchronise_stream(handle, "aclrtSynchronizeStreamWithTimeout");
}
aclError aclrtSynchronizeDevice(void) {
  TRACE();
  return synchronise_device("aclrtSynchronizeDevice");
}
aclError aclrtSynchronizeDeviceWithTimeout(int32_t) {
  TRACE();
  return synchronise_device("aclrtSynchronizeDeviceWithTimeout");
}
ACCEPT(aclrtSetStreamFailureMode, aclrtStream, uint64_t)
ACCEPT(aclrtSetStreamAttribute, aclrtStream, aclrtStreamAttr, aclrtStreamAttrValue*)
ACCEPT(aclrtSetStreamOverflowSwitch, aclrtStream, uint32_t)
aclError aclrtGetStreamOverflowSwitch(aclrtStream, uint32_t* flag) {
  *flag = 0;
  return ACL_SUCCESS;
}

aclError aclrtCreateEventWithFlag(aclrtEvent* handle, uint32_t flags) {
  TRACE("flags %u", flags);
  return new_event(handle, flags);
}
aclError aclrtCreateEventExWithFlag(aclrtEvent* handle, uint32_t flags) {
  TRACE("flags %u", flags);
  return new_event(handle, flags);
}
// Events live on: recorded tasks may still name them.
ACCEPT(aclrtDestroyEvent, aclrtEvent)
aclError aclrtRecordEvent(aclrtEvent handle, aclrtStream stream_handle) {
  TRACE("event %p stream %d", handle, stream_of(stream_handle)->id);
  LOCK;
  auto event = static_cast<Event*>(handle);
  Stream* stream = stream_of(stream_handle);
  if (stream->capture && !event->external()) {
    event->capture = stream->capture;
    event->clock = stream->clock;
    return ACL_SUCCESS;
  }
  if (!stream->capture) event->capture = nullptr;
  return submit(stream, event_task(Kind::RecordEvent, event, ++event->asked, event->external()));
}
aclError aclrtStreamWaitEvent(aclrtStream stream_handle, aclrtEvent handle) {
  TRACE("event %p stream %d", handle, stream_of(stream_handle)->id);
  LOCK;
  auto event = static_cast<Event*>(handle);
  Stream* stream = stream_of(stream_handle);
  if (!event->external()) {
    if (event->capture && !event->capture->done) {
      join_capture(stream, event);
      return ACL_SUCCESS;
    }
    if (!event->asked) return ACL_SUCCESS;
    if (stream->capture) {
      stream->capture->invalid = true;
      return fail(ACL_ERROR_RT_CAPTURE_DEPENDENCY, "a captured stream waits for an event from outside the capture");
    }
  }
  return submit(stream, event_task(Kind::WaitEvent, event, event->asked, event->external()));
}
aclError aclrtResetEvent(aclrtEvent handle, aclrtStream stream) {
  TRACE("event %p stream %d", handle, stream_of(stream)->id);
  LOCK;
  auto event = static_cast<Event*>(handle);
  if (!event->external()) return ACL_SUCCESS;
  return submit(stream_of(stream), event_task(Kind::ResetEvent, event, 0, true));
}
aclError aclrtSynchronizeEvent(aclrtEvent handle) {
  TRACE();
  LOCK;
  auto event = static_cast<Event*>(handle);
  if (auto error = refuse_while_capturing("aclrtSynchronizeEvent")) return error;
  drain_for(event);
  if (event->done >= event->asked) return ACL_SUCCESS;
  return fail(ACL_ERROR_RT_TASK_TIMEOUT, "the event can never complete");
}
aclError aclrtQueryEventStatus(aclrtEvent handle, aclrtEventRecordedStatus* status) {
  LOCK;
  auto event = static_cast<Event*>(handle);
  if (event->capture && !event->capture->done) return fail(ACL_ERROR_RT_EVENT_CAPTURED, "query of a captured event");
  drain_what_can_run();
  bool complete = event->done >= event->asked;
  *status = complete ? ACL_EVENT_RECORDED_STATUS_COMPLETE : ACL_EVENT_RECORDED_STATUS_NOT_READY;
  return ACL_SUCCESS;
}
aclError aclrtQueryEventWaitStatus(aclrtEvent handle, aclrtEventWaitStatus* status) {
  LOCK;
  drain_what_can_run();
  auto event = static_cast<Event*>(handle);
  *status = event->done >= event->asked ? ACL_EVENT_WAIT_STATUS_COMPLETE : ACL_EVENT_WAIT_STATUS_NOT_READY;
  return ACL_SUCCESS;
}
aclError aclrtEventElapsedTime(float* milliseconds, aclrtEvent start, aclrtEvent end) {
  *milliseconds =
      static_cast<float>(static_cast<Event*>(end)->milliseconds - static_cast<Event*>(start)->milliseconds);
  return ACL_SUCCESS;
}
aclError aclrtEventGetTimestamp(aclrtEvent handle, uint64_t* microseconds) {
  *microseconds = static_cast<uint64_t>(static_cast<Event*>(handle)->milliseconds * 1e3);
  return ACL_SUCCESS;
}

aclError aclrtValueWrite(void* address, uint64_t value, uint32_t, aclrtStream stream) {
  TRACE("address %p value %llu stream %d", address, (unsigned long long)value, stream_of(stream)->id);
  return run(stream, "value_write", [=] { *static_cast<volatile uint64_t*>(address) = value; });
}
aclError aclrtValueWait(void* address, uint64_t value, uint32_t condition, aclrtStream stream) {
  TRACE("address %p value %llu condition %u", address, (unsigned long long)value, condition);
  LOCK;
  auto task = std::make_shared<Task>();
  task->kind = Kind::WaitValue;
  task->name = "value_wait";
  task->address = static_cast<volatile uint64_t*>(address);
  task->version = value;
  task->condition = condition;
  return submit(stream_of(stream), task);
}

aclError aclrtLaunchCallback(aclrtCallback fn, void* data, aclrtCallbackBlockType, aclrtStream stream) {
  TRACE();
  return run(stream, "callback", [=] { fn(data); });
}
aclError aclrtLaunchHostFunc(aclrtStream stream, aclrtHostFunc fn, void* data) {
  TRACE();
  return run(stream, "host_function", [=] { fn(data); });
}
ACCEPT(aclrtSubscribeReport, uint64_t, aclrtStream)
ACCEPT(aclrtUnSubscribeReport, uint64_t, aclrtStream)
aclError aclrtProcessReport(int32_t milliseconds) {
  usleep(milliseconds > 0 ? milliseconds * 1000 : 1000);
  return ACL_SUCCESS;
}
}

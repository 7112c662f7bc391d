// The state of a software CANN runtime, shared by the files of this folder.
//
// Device memory is host memory. A stream is an in-order queue of tasks that some host thread drains.
// A capture is a recorded list of tasks. Written from the public ACL declarations only.
#pragma once

#include <cstdint>
#include <cstdio>

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "acl/acl.h"
#include "acl/acl_rt.h"

namespace soft {

struct Event;
struct Group;
struct Model;
struct Stream;

enum class Kind { Run, RecordEvent, WaitEvent, ResetEvent, Group, WaitValue };

// One item of a stream's queue or of a captured model.
struct Task {
  Kind kind = Kind::Run;
  std::string name;
  std::function<void()> fn;               // Run
  Event* event = nullptr;                 // RecordEvent, WaitEvent, ResetEvent
  uint64_t version = 0;                   // of the event; the value that WaitValue compares with
  bool external = false;                  // the event is an external (notify) event
  volatile uint64_t* address = nullptr;   // WaitValue
  uint32_t condition = 0;                 // WaitValue: 0 >=, 1 ==, 2 and, 3 nor
  std::shared_ptr<Group> group;           // Group
};
using TaskPtr = std::shared_ptr<Task>;

// Tasks of a captured model that an update may replace.
struct Group {
  uint64_t id = 0;
  std::vector<TaskPtr> tasks;
};

// A capture, under way or done.
struct Model {
  uint32_t id = 0;
  Stream* origin = nullptr;
  int mode = 0;
  uint64_t thread = 0;
  bool invalid = false;
  bool done = false;
  uint64_t last_task = 0;
  std::vector<TaskPtr> tasks;
  std::set<Stream*> joined;
  std::vector<std::shared_ptr<Group>> groups;
};

// The last task of each captured stream that something is ordered after.
using Clock = std::map<Stream*, uint64_t>;

struct Event {
  uint32_t flags = 0;
  uint64_t asked = 0;       // records asked for so far
  uint64_t done = 0;        // records that have happened
  double milliseconds = 0;
  bool set = false;         // external events: written, and not yet reset
  Model* capture = nullptr; // recorded inside this capture
  Clock clock;
  bool external() const { return flags & ACL_EVENT_EXTERNAL; }
};

struct Stream {
  int id = 0;
  std::deque<TaskPtr> queue;
  bool draining = false;
  Model* capture = nullptr;
  Clock clock;
  std::shared_ptr<Group> open_group;    // a task group being captured
  std::shared_ptr<Group> updated_group; // a task group being updated
  std::vector<TaskPtr> update;          // the tasks that will replace it
};

// Guards everything; every entry point takes it. Kernels are Python functions, run under the lock, so a thread
// that has the interpreter's lock must not wait for this one without letting go of the other.
class Lock {
 public:
  Lock();
  ~Lock();
};
#define LOCK soft::Lock lock_

extern std::set<Stream*> streams;
extern std::set<Model*> capturing;

// process.cpp
aclError fail(aclError code, const std::string& message);  // sets the message that torch_npu shows
int setting(const char* name, int fallback);               // an environment variable
bool tracing();
FILE* trace_file();
uint64_t thread_id();

// scheduler.cpp
Stream* stream_of(aclrtStream handle);                      // the default stream for null
aclError submit(Stream* stream, TaskPtr task);
aclError run(aclrtStream stream, const char* name, std::function<void()> fn);
void drain_what_can_run();
void drain_for(Stream* stream);                             // as little as it needs; null: everything
void drain_for(Event* event);
aclError synchronise(Stream* stream, const char* who);      // null: every stream
void enqueue(Stream* stream, TaskPtr task);
int lazy(int seed);                                         // negative: only ask
void strict_waits(bool on);

// memory.cpp
size_t device_bytes_used();
size_t device_bytes_total();

// capture.cpp
aclError refuse_while_capturing(const char* who);

}  // namespace soft

#define TRACE(...)                                               \
  do {                                                           \
    if (soft::tracing()) {                                       \
      std::fprintf(soft::trace_file(), "[acl] %s", __func__);    \
      std::fprintf(soft::trace_file(), " " __VA_ARGS__);         \
      std::fputc('\n', soft::trace_file());                      \
      std::fflush(soft::trace_file());                           \
    }                                                            \
  } while (0)

// An entry point that does nothing and succeeds.
#define ACCEPT(name, ...)      \
  aclError name(__VA_ARGS__) { \
    TRACE();                   \
    return ACL_SUCCESS;        \
  }

// Queues and the order they are drained in.
//
// By default a task runs as soon as it can. In lazy mode nothing runs before somebody waits for it, and then
// as little as possible, in a random order: work that lacks a dependency then runs too late or too early.
#include "runtime.h"

#include <algorithm>
#include <ctime>
#include <mutex>

// The Python interpreter's lock; absent in a process without one.
extern "C" {
int PyGILState_Check() __attribute__((weak));
void* PyEval_SaveThread() __attribute__((weak));
void PyEval_RestoreThread(void*) __attribute__((weak));
}

namespace soft {

std::set<Stream*> streams;

static std::recursive_mutex mutex;
static int lazy_seed = 0;
static bool strict = true;
static uint64_t random_state = 88172645463325252ull;

Lock::Lock() {
  if (mutex.try_lock()) return;
  bool interpreter_locked = PyGILState_Check && PyGILState_Check();
  void* thread = interpreter_locked ? PyEval_SaveThread() : nullptr;
  mutex.lock();
  if (interpreter_locked) PyEval_RestoreThread(thread);
}
Lock::~Lock() { mutex.unlock(); }

static void mix_seed(int seed) { random_state += 0x9E3779B97F4A7C15ull * seed; }

static uint64_t next_random() {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return random_state;
}

static double milliseconds_now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}

Stream* stream_of(aclrtStream handle) {
  static Stream* fallback = [] {
    auto stream = new Stream;
    streams.insert(stream);
    return stream;
  }();
  return handle ? static_cast<Stream*>(handle) : fallback;
}

static bool ready(const Task& task) {
  switch (task.kind) {
    case Kind::WaitValue: {
      if (!strict) return true;
      uint64_t value = *task.address;
      switch (task.condition) {
        case 0: return static_cast<int64_t>(value - task.version) >= 0;
        case 1: return value == task.version;
        case 2: return (value & task.version) != 0;
        default: return ~(value | task.version) != 0;
      }
    }
    case Kind::WaitEvent:
      return task.external ? task.event->set || !strict : task.event->done >= task.version;
    default:
      return true;
  }
}

static void execute(Task& task) {
  switch (task.kind) {
    case Kind::Run:
      task.fn();
      break;
    case Kind::RecordEvent:
      task.event->done = std::max(task.event->done, task.version);
      task.event->milliseconds = milliseconds_now();
      task.event->set = true;
      break;
    case Kind::ResetEvent:
      task.event->set = false;
      break;
    case Kind::Group:
      for (auto& member : std::vector<TaskPtr>(task.group->tasks)) execute(*member);
      break;
    case Kind::WaitEvent:
    case Kind::WaitValue:
      break;
  }
}

static void step(Stream* stream) {
  stream->draining = true;
  TaskPtr task = stream->queue.front();
  stream->queue.pop_front();
  execute(*task);
  stream->draining = false;
}

static bool can_step(Stream* stream) {
  return !stream->draining && !stream->queue.empty() && ready(*stream->queue.front());
}

static bool drain(Stream* stream) {
  bool progress = false;
  for (; can_step(stream); progress = true) step(stream);
  return progress;
}

void drain_what_can_run() {
  if (lazy_seed) return;
  for (bool progress = true; progress;) {
    progress = false;
    for (auto stream : std::vector<Stream*>(streams.begin(), streams.end())) progress |= drain(stream);
  }
}

static bool step_at_random() {
  std::vector<Stream*> candidates;
  for (auto stream : streams)
    if (can_step(stream)) candidates.push_back(stream);
  if (candidates.empty()) return false;
  step(candidates[next_random() % candidates.size()]);
  return true;
}

void drain_for(Stream* stream) {
  if (!lazy_seed) return drain_what_can_run();
  do {
    if (stream) {
      drain(stream);
      if (stream->queue.empty()) return;
    }
  } while (step_at_random());
}

void drain_for(Event* event) {
  if (!lazy_seed) return drain_what_can_run();
  while (event->done < event->asked && step_at_random()) {
  }
}

aclError synchronise(Stream* wanted, const char* who) {
  drain_for(wanted);
  for (auto stream : streams) {
    if ((wanted && stream != wanted) || stream->queue.empty()) continue;
    TaskPtr stuck = stream->queue.front();
    stream->queue.clear();  // the hardware reports the timeout and drops the stream's work
    bool update = stuck->external || stuck->kind == Kind::WaitValue;
    return fail(ACL_ERROR_RT_TASK_TIMEOUT,
                std::string(who) + ": stream " + std::to_string(stream->id) + " can never finish: it waits for " +
                    (update ? "an external event that nobody recorded (was NPUGraph.update called for this replay?)"
                            : "an event that is never recorded"));
  }
  return ACL_SUCCESS;
}

void enqueue(Stream* stream, TaskPtr task) {
  stream->queue.push_back(std::move(task));
  drain_what_can_run();
}

aclError submit(Stream* stream, TaskPtr task) {
  if (Model* model = stream->capture) {
    if (model->invalid) return fail(ACL_ERROR_RT_STREAM_CAPTURE_INVALIDATED, "the capture was invalidated before");
    stream->clock[stream] = ++model->last_task;
    (stream->open_group ? stream->open_group->tasks : model->tasks).push_back(std::move(task));
  } else if (stream->updated_group) {
    stream->update.push_back(std::move(task));
  } else {
    enqueue(stream, std::move(task));
  }
  return ACL_SUCCESS;
}

aclError run(aclrtStream stream, const char* name, std::function<void()> fn) {
  LOCK;
  auto task = std::make_shared<Task>();
  task->name = name;
  task->fn = std::move(fn);
  return submit(stream_of(stream), task);
}

int lazy(int seed) {
  int previous = lazy_seed;
  if (seed >= 0) {
    if (!seed) {
      lazy_seed = 0;
      drain_what_can_run();
    }
    lazy_seed = seed;
    mix_seed(seed);
  }
  return previous;
}

void strict_waits(bool on) { strict = on; }

}  // namespace soft

"""A machine for production code: its processes, threads, clocks and locks, all in one thread and in virtual time.

A thread is a greenlet. It runs until it waits: for a lock, an answer, the disk or a time. Then the machine runs the
next one that can run; if there is none, its clock jumps to the next time that something waits for. Nothing here is
random: the same calls in the same order give the same run.

`threads()` and `clock()` stand in for the modules `threading` and `time` in the modules under test.
"""

from __future__ import annotations

import heapq
import itertools
import time as real_time
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace, TracebackType
from typing import Any

from greenlet import GreenletExit, getcurrent, greenlet  # type: ignore[import-untyped]

Killed = GreenletExit  # ends a thread of a process that was killed
EPOCH = 1_700_000_000.0  # when every simulation begins


class Stuck(Exception):
    """A thread waits for something that nothing will bring."""


class Host:
    """A computer with a name and a clock that may be wrong."""

    def __init__(self, name: str, skew: float = 0.0) -> None:
        self.name = name
        self.skew = skew  # seconds that its wall clock is ahead


class Process:
    """Threads that live and die together."""

    def __init__(self, machine: Machine, host: Host, pid: int, name: str) -> None:
        self.machine = machine
        self.host = host
        self.pid = pid
        self.name = name
        self.alive = True
        self.threads: list[Thread] = []
        self.frozen = False  # by SIGSTOP
        self._held: list[tuple[Thread, int, bool]] = []  # threads that could run if it were not frozen
        self.files: list[Any] = []  # open connections to a database; closed when it dies
        self.activity = ""  # what its main thread does, for the table of faults

    def freeze(self, seconds: float) -> None:
        """Let it stand still for so long, as SIGSTOP does; the clocks of its host go on."""
        self.frozen = True
        self.machine.after(seconds, self._thaw)

    def _thaw(self) -> None:
        self.frozen = False
        held, self._held = self._held, []
        for entry in held:
            self.machine.ready.append(entry)

    def hold(self, thread: Thread, turn: int, *, woken: bool) -> None:
        self._held.append((thread, turn, woken))

    def kill(self) -> None:
        """End it at once, as SIGKILL does: no thread runs another line that anything outside could notice."""
        self.alive = False
        self.machine.news = True
        for thread in self.threads:
            thread.end()
        for file in self.files:
            file.abandon()
        self.threads.clear()


class Thread:
    def __init__(self, process: Process, work: Callable[[], object], name: str = "") -> None:
        self.process = process
        self.machine = process.machine
        self.name = name
        self.greenlet = greenlet(self._run, process.machine.hub)
        self.work = work
        self.ended = False
        self.waiters: list[Thread] = []
        self.turn = 0  # counts its waits, so that a timeout of an earlier wait is not taken for this one's
        self.waits = False
        self.activity = ""
        self.pending: BaseException | None = None  # raised at its next wait: Ctrl-C
        process.threads.append(self)

    def _run(self, *_: object) -> None:
        try:
            self.work()
        except GreenletExit:
            pass
        finally:
            self.ended = self.machine.news = True
            if self.process.alive:
                self.process.threads.remove(self)
                for waiter in self.waiters:
                    self.machine.wake(waiter)

    def end(self) -> None:
        if self.ended:
            return
        if self.greenlet.dead or not self.greenlet:  # never started
            self.ended = True
            return
        before, self.machine.current = self.machine.current, self
        try:
            self.greenlet.throw(GreenletExit)
        finally:
            self.machine.current = before
            self.ended = True


class Machine:
    """Runs threads and planned actions in the order of virtual time."""

    def __init__(self, longest: float = 1e9) -> None:
        self.now = 0.0
        self.hub = getcurrent()
        self.current: Thread | None = None
        self.ready: deque[tuple[Thread, int, bool]] = deque()
        self._timed: list[tuple[float, int, Any, int]] = []
        self._order = itertools.count()
        self._pids = itertools.count(100)
        self.processes: dict[tuple[str, int], Process] = {}
        self.switches = 0
        self.longest = longest  # switches
        self.news = True  # something ended, or was carried out: what waits for that looks again
        self.home = Host("cloud")
        self.begins: Callable[[Process, str], None] = lambda _, __: None  # called when a process begins a step

    def process(self, host: Host, name: str) -> Process:
        process = Process(self, host, next(self._pids), name)
        self.processes[host.name, process.pid] = process
        return process

    def start(self, process: Process, work: Callable[[], object], name: str = "") -> Thread:
        thread = Thread(process, work, name)
        thread.waits, thread.turn = True, 1
        self.ready.append((thread, 1, True))
        return thread

    def at(self, when: float, action: Callable[[], object]) -> None:
        """Call the action at that time, from no thread; it must not wait."""
        heapq.heappush(self._timed, (max(when, self.now), next(self._order), action, 0))

    def after(self, seconds: float, action: Callable[[], object]) -> None:
        self.at(self.now + seconds, action)

    def sleep(self, seconds: float) -> None:
        until = self.now + max(0.0, seconds)
        self.wait(until - self.now)
        while self.now < until:  # it was woken for something that it no longer waits for
            self.wait(until - self.now)

    def wait(self, seconds: float | None = None) -> bool:
        """Let others run until `wake` is called for this thread, or for so long; True if it was woken."""
        thread = self.current
        if thread is None:
            raise Stuck("an action of the machine itself must not wait")
        if not thread.process.alive:
            raise GreenletExit
        thread.turn += 1
        thread.waits = True
        if seconds is not None:
            heapq.heappush(self._timed, (self.now + seconds, next(self._order), thread, thread.turn))
        woken = bool(self.hub.switch())
        thread.waits = False
        if not thread.process.alive:
            raise GreenletExit
        if thread.pending:
            pending, thread.pending = thread.pending, None
            raise pending
        return woken

    def wake(self, thread: Thread) -> None:
        if thread.waits and thread.process.alive:
            thread.waits = False
            self.ready.append((thread, thread.turn, True))

    def interrupt(self, thread: Thread, error: BaseException) -> None:
        """Raise the error in the thread, where it waits or will wait next."""
        thread.pending = error
        self.wake(thread)

    def run(self, is_over: Callable[[], bool]) -> None:
        """Run everything until `is_over`, which is asked whenever there are news; raises Stuck if nothing can go on
        before that."""
        self.news = True
        while True:
            if self.news:
                self.news = False
                if is_over():
                    return
            if self.ready:
                thread, turn, woken = self.ready.popleft()
                if turn != thread.turn or thread.ended:
                    continue
                thread.waits = False
            elif self._timed:
                when, _, what, turn = heapq.heappop(self._timed)
                if not isinstance(what, Thread):
                    self.now = max(self.now, when)
                    what()
                    continue
                if turn != what.turn or not what.waits or what.ended:
                    continue
                self.now = max(self.now, when)
                thread, woken = what, False
                thread.waits = False
            else:
                raise Stuck("nothing is left to happen")
            if not thread.process.alive:
                continue
            if thread.process.frozen:
                thread.process.hold(thread, turn, woken=woken)
                continue
            self.switches += 1
            if self.switches > self.longest:
                raise Stuck(f"it still goes on after {self.longest} switches")
            self.current = thread
            thread.greenlet.switch(woken)
            self.current = None

    @property
    def here(self) -> Host:
        return self.current.process.host if self.current else self.home

    def wall(self) -> float:
        """The time as the clock of the calling thread's host shows it."""
        return EPOCH + self.now + self.here.skew


# What stands in for `threading`.


class Lock:
    """Also an RLock, where `again` is true."""

    def __init__(self, machine: Callable[[], Machine], *, again: bool = False) -> None:
        self._machine = machine
        self._again = again
        self._owner: object = None
        self._depth = 0
        self._waiters: deque[Thread] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        machine = self._machine()
        me: object = machine.current or machine
        owner = self._owner
        if owner is None:
            self._owner, self._depth = me, 1
            return True
        if owner is me and self._again:
            self._depth += 1
            return True
        if self._is_dead(owner):
            self._owner, self._depth = me, 1
            return True
        if not blocking:
            return False
        deadline = None if timeout < 0 else machine.now + timeout
        assert machine.current
        while self._owner is not None and not self._is_dead(self._owner):
            self._waiters.append(machine.current)
            if not machine.wait(None if deadline is None else deadline - machine.now):
                return False
        self._owner, self._depth = me, 1
        return True

    @staticmethod
    def _is_dead(owner: object) -> bool:
        return isinstance(owner, Thread) and not owner.process.alive

    def release(self) -> None:
        self._depth -= 1
        if self._depth <= 0:
            self._owner, self._depth = None, 0
            if self._waiters:
                self._machine().wake(self._waiters.popleft())

    def locked(self) -> bool:
        return self._owner is not None

    def release_all(self) -> int:
        depth, self._depth = self._depth, 1
        self.release()
        return depth

    def acquire_all(self, depth: int) -> None:
        self.acquire()
        self._depth = depth

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class Condition:
    def __init__(self, machine: Callable[[], Machine], lock: Lock | None = None) -> None:
        self._machine = machine
        self._lock = lock or Lock(machine, again=True)
        self._waiters: list[Thread] = []

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        machine = self._machine()
        assert machine.current
        depth = self._lock.release_all()
        me = machine.current
        self._waiters.append(me)
        try:
            return machine.wait(None if timeout is None else max(0.0, timeout))
        finally:
            if me in self._waiters:
                self._waiters.remove(me)
            if me.process.alive:
                self._lock.acquire_all(depth)

    def notify(self, count: int = 1) -> None:
        for waiter in self._waiters[:count]:
            self._waiters.remove(waiter)
            self._machine().wake(waiter)

    def notify_all(self) -> None:
        self.notify(len(self._waiters))


class Event:
    def __init__(self, machine: Callable[[], Machine]) -> None:
        self._machine = machine
        self._set = False
        self._waiters: list[Thread] = []

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        for waiter in self._waiters:
            self._machine().wake(waiter)
        self._waiters.clear()

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        machine = self._machine()
        deadline = None if timeout is None else machine.now + timeout
        while not self._set:
            assert machine.current
            self._waiters.append(machine.current)
            if not machine.wait(None if deadline is None else max(0.0, deadline - machine.now)):
                break
        return self._set


class PlannedThread:
    """`threading.Thread`."""

    def __init__(
        self,
        machine: Callable[[], Machine],
        target: Callable[..., object],
        name: str = "",
        daemon: bool = True,
        args: tuple[Any, ...] = (),
    ) -> None:
        self._machine = machine
        self._target = target
        self._arguments = args
        self.name = name
        self.daemon = daemon
        self._thread: Thread | None = None

    @property
    def ident(self) -> int | None:
        return id(self._thread) if self._thread else None

    def start(self) -> None:
        machine = self._machine()
        process = machine.current.process if machine.current else machine.processes["cloud", 0]
        self._thread = machine.start(process, lambda: self._target(*self._arguments), self.name)
        if machine.current:
            self._thread.activity = machine.current.activity

    def is_alive(self) -> bool:
        return self._thread is not None and not self._thread.ended

    def join(self, timeout: float | None = None) -> None:
        machine = self._machine()
        deadline = None if timeout is None else machine.now + timeout
        while self._thread and not self._thread.ended:
            assert machine.current
            self._thread.waiters.append(machine.current)
            if not machine.wait(None if deadline is None else max(0.0, deadline - machine.now)):
                return


def threads(machine: Callable[[], Machine]) -> Any:
    """What stands in for the module `threading`."""

    def lock() -> Lock:
        return Lock(machine)

    def rlock() -> Lock:
        return Lock(machine, again=True)

    def condition(inner: Lock | None = None) -> Condition:
        return Condition(machine, inner)

    def make(target: Callable[..., object], name: str = "", **options: Any) -> PlannedThread:
        return PlannedThread(machine, target, name, **options)

    return SimpleNamespace(
        Lock=lock,
        RLock=rlock,
        Condition=condition,
        Event=lambda: Event(machine),
        Thread=make,
        local=SimpleNamespace,
        get_ident=lambda: id(machine().current),
        current_thread=lambda: machine().current,
        main_thread=lambda: None,
    )


def clock(machine: Callable[[], Machine]) -> Any:
    """What stands in for the module `time`."""
    return SimpleNamespace(
        time=lambda: machine().wall(),
        time_ns=lambda: int(machine().wall() * 1e9),
        monotonic=lambda: machine().now,
        perf_counter=lambda: machine().now,
        process_time=lambda: 0.0,
        thread_time=lambda: 0.0,
        sleep=lambda seconds: machine().sleep(seconds),
        strftime=real_time.strftime,
        gmtime=real_time.gmtime,
        localtime=real_time.localtime,
        mktime=real_time.mktime,
    )


class GreenScheduler:
    """The Fleet's scheduler: its workers and its timer are threads of the machine."""

    def __init__(self, machine: Callable[[], Machine], delay: Callable[[], float]) -> None:
        """`delay`: how long an action waits for a worker."""
        self._machine = machine
        self._delay = delay
        self._lock = Lock(machine, again=True)
        self._changed = Condition(machine, self._lock)
        self._timed: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._planned = Condition(machine, Lock(machine))
        self._timer: PlannedThread | None = None
        self._closed = False

    def now(self) -> float:
        return self._machine().now

    def cpu(self) -> float:
        return 0.0

    def soon(self, action: Callable[[], None]) -> None:
        def work() -> None:
            self._machine().sleep(self._delay())
            if not self._closed:
                action()

        PlannedThread(self._machine, work, "worker").start()

    def at(self, when: float, action: Callable[[], None]) -> None:
        with self._planned:
            heapq.heappush(self._timed, (when, next(self._order), action))
            if self._timer is None:
                self._timer = PlannedThread(self._machine, self._do_timed, "timer")
                self._timer.start()
            else:
                self._planned.notify()

    def _do_timed(self) -> None:
        while True:
            with self._planned:
                while not self._closed and (not self._timed or self._timed[0][0] > self.now()):
                    self._planned.wait(self._timed[0][0] - self.now() if self._timed else None)
                if self._closed:
                    return
                action = heapq.heappop(self._timed)[2]
            action()

    def wait(self, seconds: float) -> None:
        self._changed.wait(seconds)

    def notify(self) -> None:
        self._changed.notify_all()

    def close(self) -> None:
        self._closed = True
        with self._planned:
            self._planned.notify()

    def __enter__(self) -> object:
        return self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()


class doing:  # noqa: N801 - used as a statement, and too often for contextlib
    """Name what the calling thread does, for the table of faults."""

    def __init__(self, machine: Machine, activity: str) -> None:
        self._thread = machine.current
        self._activity = activity

    def __enter__(self) -> None:
        if self._thread:
            self._before, self._thread.activity = self._thread.activity, self._activity
            self._thread.machine.begins(self._thread.process, self._activity)

    def __exit__(self, *_: object) -> None:
        if self._thread:
            self._thread.activity = self._before

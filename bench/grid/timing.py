"""Times of several calls, taken in turns: CUDA graphs on a GPU, the wall clock on a CPU."""

import contextlib
import gc
import os
import random
import statistics
import time

FAR = 2.5  # a peer this many times slower than the fastest of all is timed once
SHUFFLE = random.Random(0).shuffle


class Contender:
    """Somebody who takes part: ours, ours once more, or a peer."""

    def __init__(self, name, call):
        self.name, self.call, self.times, self.eager = name, call, [], None
        self.timed_by, self.result, self.first = "call", None, None

    @property
    def seconds(self):
        return statistics.median(self.times) if self.times else None

    def record(self):
        return {
            "seconds": self.seconds,
            "least_seconds": min(self.times, default=None),
            "eager_seconds": self.eager,
            "timed_by": self.timed_by,
            "rounds": len(self.times),
        }


class Others:
    """What share of this machine's processor time others took: a race beside them is no race."""

    def __init__(self):
        self.begun = self.look()

    @staticmethod
    def look():
        with open("/proc/stat") as f:
            ticks = [int(x) for x in f.readline().split()[1:9]]
        idle, own = ticks[3] + ticks[4], os.times()
        return sum(ticks), sum(ticks) - idle, (own.user + own.system) * os.sysconf("SC_CLK_TCK")

    def share(self):
        total, busy, own = (now - then for now, then in zip(self.look(), self.begun))
        return round(max(0.0, (busy - own) / total), 3) if total else None


def ratio(peer, ours):
    """Above 1 ours is faster: the median over rounds that both took part in, else of their first times."""
    if len(peer.times) == len(ours.times):
        return statistics.median(x / y for x, y in zip(peer.times, ours.times))
    return peer.first / ours.first


# ---- on a GPU ----


class Gpu:
    """All on one stream. A contender is a graph of some calls, or where it cannot be captured those calls."""

    LENGTH = 3e-4  # of a graph, in seconds
    MOST_CALLS = 64

    def __init__(self, torch):
        self.torch, self.stream = torch, torch.cuda.Stream()

    def scope(self):
        return self.torch.cuda.stream(self.stream)

    def settle(self):
        self.torch.cuda.synchronize()

    def pair(self, queue):
        """Seconds of one `queue`, behind another one that hides the host's time."""
        begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        queue()
        begin.record()
        queue()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e-3

    def repeat(self, call, calls):
        def queue():
            for _ in range(calls):
                call()

        return queue

    def ready(self, c):
        """Captures a contender, and times it once."""
        once = min(self.pair(c.call) for _ in range(2))
        calls = 1 if once > 2e-3 else 4
        try:
            queue = self.capture(c, calls)
            c.timed_by = "graph"
            once = min(self.pair(queue) for _ in range(2)) / calls
            if calls > 1 and once * calls < self.LENGTH:
                calls = max(calls, min(self.MOST_CALLS, int(self.LENGTH / once)))
                queue = self.capture(c, calls)
        except RuntimeError as error:
            self.settle()  # raises where the device is lost
            c.timed_by, c.uncaptured = "events", str(error).partition("\n")[0][:160]
            calls = max(1, min(20, int(self.LENGTH / once)))
            queue = self.repeat(c.call, calls)
        c.queue, c.calls = queue, calls
        c.times = [self.pair(queue) / calls]
        c.first = c.seconds

    def capture(self, c, calls):
        """Without what torch.cuda.graph does around it: to collect garbage takes longer than all the rest."""
        graph = self.torch.cuda.CUDAGraph()
        self.settle()
        gc.disable()  # what is freed meanwhile would end the capture
        try:
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                for _ in range(calls):
                    c.result = None
                    c.result = c.call()
            finally:
                graph.capture_end()
        finally:
            gc.enable()
        graph.replay()
        self.settle()
        return graph.replay

    def rounds(self, contenders, seconds):
        least = sum(2 * c.times[0] * c.calls for c in contenders) + 1e-4 * len(contenders)
        count = max(3, min(11, int(seconds / least)))
        for c in contenders:
            c.times = []
        for _ in range(count):
            order = list(contenders)
            SHUFFLE(order)
            time.sleep(0.001)
            for c in order:
                c.times.append(self.pair(c.queue) / c.calls)

    def eager(self, contenders):
        """As a program without graphs has it: events around calls, one after the other."""
        for c in contenders:
            calls = max(2, min(20, int(2e-3 / c.seconds)))
            times = []
            for _ in range(3):
                begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
                self.settle()
                c.call()
                begin.record()
                for _ in range(calls):
                    c.call()
                end.record()
                end.synchronize()
                times.append(begin.elapsed_time(end) * 1e-3 / calls)
            c.eager = statistics.median(times)

    def replayed(self, c):
        """What the graph, or a call, gives now."""
        if c.timed_by != "graph":
            return c.call()
        c.queue()
        return c.result


# ---- on a CPU ----


class Cpu:
    """The wall clock around calls. Each turn begins with a nap, since thread pools spin for a while after
    their last job, and with one call that does not count."""

    LENGTH = 8e-3  # of a turn, in seconds

    def __init__(self, threads):
        self.nap = 0.06 if threads <= 4 else 0.2

    def scope(self):
        return contextlib.nullcontext()

    def settle(self):
        pass

    @staticmethod
    def once(call, calls=1):
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        return (time.perf_counter() - begin) / calls

    def ready(self, c):
        time.sleep(self.nap)
        first = self.once(c.call)
        c.times = [first if first > 0.3 else min(self.once(c.call) for _ in range(2))]
        c.first = c.seconds
        c.calls = max(1, min(1000, int(self.LENGTH / c.first)))

    def rounds(self, contenders, seconds):
        least = sum((c.calls + 1) * c.times[0] + self.nap for c in contenders)
        count = max(3, min(9, int(seconds / least)))
        for c in contenders:
            c.times = []
        for _ in range(count):
            order = list(contenders)
            SHUFFLE(order)
            for c in order:
                time.sleep(self.nap)
                c.call()
                c.times.append(self.once(c.call, c.calls))

    def eager(self, contenders):
        pass  # it was

    def replayed(self, c):
        return c.call()

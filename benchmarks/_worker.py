"""The contestant's side of ``_alternate.py``: set up once, run a timed segment per line read (no dependencies)."""

import json
import resource
import sys
import time


def serve(segment, about):
    """Answer "run" with the units done and the seconds they took, "end" with the peak memory.

    Args:
        segment: function that does the work, waits for it, and returns the number of units, or (units, seconds) when it times
            itself.
        about: what to print beside the figures (versions, sizes).
    """
    out = sys.stdout
    sys.stdout = sys.stderr  # what libraries print must not mix with the protocol

    def say(answer):
        out.write("@" + json.dumps(answer) + "\n")
        out.flush()

    say(about)
    for line in sys.stdin:
        if line.strip() == "end":
            say({"peak_rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024})
            return
        started = time.perf_counter()
        done = segment()
        units, seconds = done if isinstance(done, tuple) else (done, time.perf_counter() - started)
        say({"units": units, "seconds": seconds})

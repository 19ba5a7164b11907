"""What the scripts in Python share: where the program is, what ends them, links, namespaces, and programs that nobody forgets."""

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import threading
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# What cargo has built, and the program to measure.
RELEASE = os.path.join(os.path.abspath(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target"), "release")
SPHX = os.path.abspath(os.environ.get("SPHX") or os.path.join(RELEASE, "sphx"))
# Beyond this, for one packet in a hundred, the emulator was starved, and the link another one (docs/benchmarks.md).
LATE_MS_MAX = 1.0
# What is told to end may take so long.
ENDING_S = 10
STOPS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
# The signal that this program is to end with, and whether it has to wait.
stopped_by, is_held = None, False


def stop():
    for number in STOPS:
        signal.signal(number, signal.SIG_IGN)
    sys.exit(128 + stopped_by)


def clean_up_when_stopped():
    """From here on whatever tells this program to end lets it clean up, once: Python alone does so for Ctrl-C only, and as often as it comes."""

    def note(number, _frame):
        global stopped_by
        stopped_by = number
        if not is_held:
            stop()

    for number in STOPS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, note)


@contextlib.contextmanager
def uninterrupted():
    """Between a program's start and who ends it again nothing comes."""
    global is_held
    is_held = True
    try:
        yield
    finally:
        is_held = False
        if stopped_by:
            stop()


def run(command, timeout=None, **more):
    """As subprocess.run, but a command that is given up is told to end before it is killed: it may have something to clean up, too."""
    process = None
    try:
        with uninterrupted():
            process = subprocess.Popen(command, **more)
        output, errors = process.communicate(timeout=timeout)
    except BaseException:
        if process:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=ENDING_S)
            process.kill()
            process.wait()
        raise
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


def run_group(command, timeout=None, **more):
    """As subprocess.run, but in a session of its own: if the command is given up all that it has started goes with it. An ssh would send on beside
    whoever comes next."""
    process = None
    try:
        with uninterrupted():
            process = subprocess.Popen(command, start_new_session=True, **more)
        output, errors = process.communicate(timeout=timeout)
    finally:
        if process and process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


# ---- what people write --------------------------------------------------------------------------------------------------------------


def size(text):
    for unit, factor in {"kB": 10**3, "MB": 10**6, "GB": 10**9, "B": 1}.items():
        if text.endswith(unit):
            return int(float(text.removesuffix(unit)) * factor)
    return int(text)


def one_of(what, known, text):
    """A list of names with commas between them; others than the known ones end the program."""
    names = text.split(",")
    if unknown := [name for name in names if name not in known]:
        sys.exit(f"no such {what}: {', '.join(map(repr, unknown))}; there are {', '.join(known)}")
    return names


# ---- links --------------------------------------------------------------------------------------------------------------------------


def link_options(defaults, given):
    """Those that were given to a script for its link, and of the defaults the others. What a file says, or a kind of link, stands alone."""
    named = {word.split("=")[0] for word in given}
    if named & {"--like", "--config"}:
        return given
    return [word for option in defaults.items() if option[0] not in named for word in option] + given


def link_environment(directory):
    """For 'sphx lab link': its name is one in this directory, so that any number of links may have it, also one that this is called within."""
    return os.environ | {"XDG_RUNTIME_DIR": directory, "SPHX_LINK_SOCKET": ""}


def link_report():
    """The counters of the link that this program is at an end of."""
    said = subprocess.run([SPHX, "lab", "link", "show", "--json"], check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(said.splitlines()[-1])


def link_bytes(report):
    """IP bytes of both directions that have been on the link, those included that it lost."""
    return sum(report[direction]["sent_bytes"] for direction in ("forward", "return"))


def lateness(report):
    """How late the emulator was, in words, which warn if that was another link than the one that was asked for."""
    late = report["lateness"]["p99_ms"]
    starved = "; STARVED: these numbers are of another link, run it again" if late > LATE_MS_MAX else ""
    return f"99 % of the emulator's packets at most {late:.2f} ms late{starved}"


def median(rows):
    """Of the numbers of runs; those that have failed, and those of another link, are counted and left out."""
    ran = [row for row in rows if "failed" not in row]
    good = [row for row in ran if row.get("late_p99_ms", 0) <= LATE_MS_MAX]
    numbers = {key: round(statistics.median(row[key] for row in good), 4) for key in (good[0] if good else {}) if not isinstance(good[0][key], bool)}
    left_out = {"failed": len(rows) - len(ran), "starved": len(ran) - len(good)}
    return {"median_of": len(good)} | numbers | {why: count for why, count in left_out.items() if count}


# ---- namespaces ---------------------------------------------------------------------------------------------------------------------


def ip(*words):
    subprocess.run(["ip", *words], check=True)


@contextlib.contextmanager
def namespaces(*names):
    """Network namespaces until the end of the block, or of the program. Their names have to be of this process."""
    try:
        for name in names:
            ip("netns", "add", name)
        yield
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], stderr=subprocess.DEVNULL, check=False)


@contextlib.contextmanager
def veth_pair(names, addresses):
    """Two namespaces whose interfaces veth0 are the ends of one cable."""
    with namespaces(*names):
        ip("link", "add", "veth0", "netns", names[0], "type", "veth", "peer", "name", "veth0", "netns", names[1])
        for name, address in zip(names, addresses):
            ip("-n", name, "address", "add", f"{address}/24", "dev", "veth0")
            for device in ("veth0", "lo"):
                ip("-n", name, "link", "set", device, "up")
        yield


# ---- programs at the ends -----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def ends(limit_s=None):
    """A list for processes, which are started into it uninterrupted. They are killed after the limit, and do not outlive the block, however it
    ends: one may wait for ever for another that has failed."""
    processes = []
    timer = threading.Timer(limit_s, lambda: [process.kill() for process in list(processes)]) if limit_s else None
    if timer:
        timer.start()
    try:
        yield processes
    finally:
        if timer:
            timer.cancel()
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()


def first_line(process):
    """What a listening end says first; one that does not listen has failed."""
    return process.stdout.readline() or sys.exit("an end that was to listen has failed")


def result(process, bytes_min=0):
    """Reads what an end says (--json) up to its result."""
    for line in process.stdout:
        event = json.loads(line)
        if event.get("event") == "done" and event.get("bytes", 0) >= bytes_min:
            return event
        if event.get("event") == "error":
            sys.exit(f"an end failed: {line.strip()}")
    sys.exit("an end gave no result")


def in_order(process):
    """Waits for an end that has failed if its exit status says so."""
    if process.wait() != 0:
        sys.exit(f"an end failed: exit status {process.returncode}")

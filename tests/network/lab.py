"""A network of namespaces: a server behind one shaped link, clients behind one each. Never leaves anything behind.

    server -- [delay] -- router -- [home] -- client 0
                                          -- client 1 ...

A client's end may be the server's end of another such network.

Rates are kept by the kernel's token buckets (tc tbf) at the sending end of each link, on every frame's full length. The
delay, half a round trip each way, and the loss of frames are those of `delayline.c`, which every kernel can run.
"""

from __future__ import annotations

import ctypes
import fcntl
import itertools
import json
import math
import os
import shutil
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

from tests.network.peer import SERVER

HERE = Path(__file__).parent
PORT = 5555
FIFO_NBYTES = 500_000
"""What a shaper holds back before it drops frames, unless a test says otherwise."""
FRAME_NBYTES = 1514
SETTLE_SECONDS = 2.0
"""Long enough for every sender to be idle: Linux forgets the window after 0.2 s and a round trip."""

PERIOD_MICROSECONDS = 20_000
"""In which a client's end has used up its share of the processors, and waits for the next one."""

_SIOCETHTOOL = 0x8946
# TSO would cut a large packet up behind the shaper, GRO join frames up behind it, and unfilled checksums would be
# refused behind a delay line. In this order, since TSO needs the checksums. From linux/ethtool.h.
_OFFLOADS = {"tso": 0x1F, "gso": 0x24, "gro": 0x2C, "tx checksum": 0x17}
_numbers = itertools.count()

Steps = Sequence[Sequence[object]]
"""What a peer does, one after the other; see `tests.network.peer`."""


class UnavailableError(Exception):
    """This machine cannot make such a network; the text says what is missing."""


def command(*words: str) -> str:
    """Run and give what it printed; `UnavailableError` with its message if it fails."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UnavailableError(f"`{' '.join(words)}`: {done.stderr.strip() or done.returncode}")
    return done.stdout


def require_kernel() -> None:
    """`UnavailableError` unless namespaces, veth and tbf can be had."""
    if os.geteuid() != 0:
        raise UnavailableError("network namespaces need root")
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            raise UnavailableError(f"{tool} (iproute2) is not installed")
    with ExitStack() as undo:
        name = _namespace("probe", undo)
        _veth((name, "left"), (name, "right"))
        _shape(name, "left", 1e6)


class Lab:
    """The network and one process at each of its ends; a context manager.

    ``down`` and ``up`` are the clients' rates, ``server_down`` and ``server_up`` those of the server's link, seen from
    the clients, in bit/s; inf is not shaped. ``loss``: the probability that a frame is lost on its way, in either
    direction. ``home_down``, ``home_up``: the link of the home in which all clients are; inf: none. ``congestion``: the
    congestion control of all senders, by default cubic. ``queue_nbytes``: what each shaper holds back before it drops
    frames. ``client_cores``: what all processes started at a client's end have of this machine's processors together,
    so that clients are computers of their own as long as all of them fit; inf: they compete for what there is.
    ``server``: a client's end of another lab, at which this one's server is; None: it has an end of its own.
    ``client_rtts``: what each client's own link adds to ``rtt``; none: nothing.
    """

    def __init__(
        self,
        rtt: float,
        down: Sequence[float],
        up: Sequence[float] = (),
        server_down: float = math.inf,
        server_up: float = math.inf,
        loss: float = 0.0,
        congestion: str = "",
        queue_nbytes: int = FIFO_NBYTES,
        home_down: float = math.inf,
        home_up: float = math.inf,
        client_cores: float = math.inf,
        server: tuple[Lab, str] | None = None,
        client_rtts: Sequence[float] = (),
    ) -> None:
        self.home_down, self.home_up = home_down, home_up
        self.queue_nbytes = queue_nbytes
        self.loss, self.congestion = loss, congestion or _congestion_control()
        self.rtt, self.down, self.up = rtt, tuple(down), tuple(up or down)
        self.server_down, self.server_up = server_down, server_up
        self.client_cores, self.client_rtts = client_cores, tuple(client_rtts)
        self.server = server
        self._net, self._server_port = ("10.77", "up0") if server is None else ("10.79", "down0")
        """The first half of all addresses but a home's, and the server's interface"""
        self._undo = ExitStack()
        self._peers: dict[str, subprocess.Popen[str]] = {}
        self._namespaces: dict[str, str] = {}
        self._processors: dict[str, Path] = {}
        """End -> its control group"""

    def __enter__(self) -> Lab:
        try:
            self._wire_up()
            self._start_peers()
        except BaseException:
            self._undo.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    @property
    def clients(self) -> list[str]:
        """The clients' names."""
        return [client_name(i) for i in range(len(self.down))]

    def run(self, steps: Mapping[str, Steps]) -> dict[str, list[Any]]:
        """Let several peers take their steps at the same time; gives what each of them saw, step by step."""
        self.tell(steps)
        return self.hear(steps)

    def tell(self, steps: Mapping[str, Steps]) -> None:
        """Let several peers begin with their steps."""
        for name, these in steps.items():
            pipe = self._peers[name].stdin
            assert pipe is not None
            pipe.write(json.dumps(these) + "\n")
            pipe.flush()

    def hear(self, names: Iterable[str]) -> dict[str, list[Any]]:
        """What each of these peers saw, step by step, when all have taken their steps."""
        return {name: self._hear(name) for name in names}

    def settle(self) -> None:
        """Wait until all connections are idle."""
        time.sleep(SETTLE_SECONDS)

    def sent_nbytes(self, name: str) -> int:
        """Bytes of all frames that this end has sent so far, as its network interface counts them."""
        port = self._server_port if name == SERVER else "up0"
        shown = json.loads(command("ip", "-n", self._namespaces[name], "-s", "-j", "link", "show", "dev", port))
        return int(shown[0]["stats64"]["tx"]["bytes"])

    def outage(self, is_dark: bool) -> None:
        """Begin or end an outage, in which all frames are lost; only with a delay."""
        pipe = self._delay_line.stdin
        assert pipe is not None
        pipe.write("d" if is_dark else "u")
        pipe.flush()

    def namespace(self, name: str) -> str:
        """The namespace of this end."""
        return self._namespaces[name]

    @property
    def peers(self) -> set[int]:
        """The processes of the lab itself at its ends."""
        return {peer.pid for peer in self._peers.values()}

    def start(self, name: str, words: Sequence[str]) -> subprocess.Popen[str]:
        """A process at this end, beside its peer; it and its children have the end's processor."""
        return _start(self._namespaces[name], words, self._undo, self._processors.get(name))

    def _wire_up(self) -> None:
        net, port = self._net, self._server_port
        if self.server is None:
            server = self._add(SERVER)
        else:
            lab, end = self.server
            server = self._namespaces[SERVER] = lab.namespace(end)
        router = self._add("router")
        if self.rtt > 0:
            delay = self._add("delay")
            _veth((server, port), (delay, "left"))
            _veth((delay, "right"), (router, "up0"))
            self._delay_line = _delay(delay, self.rtt / 2, self.loss, self._undo)
        else:
            _veth((server, port), (router, "up0"))
        _address(server, port, f"{net}.0.1/24", via=f"{net}.0.2", congestion=self.congestion, to=f"{net}.0.0/16")
        _address(router, "up0", f"{net}.0.2/24")
        _shape(server, port, self.server_down, self.queue_nbytes)
        _shape(router, "up0", self.server_up, self.queue_nbytes)
        if min(self.home_down, self.home_up) < math.inf:
            home = self._add("home")
            _veth((router, "home"), (home, "up0"))
            _address(router, "home", "10.78.0.1/24")
            _address(home, "up0", "10.78.0.2/24", via="10.78.0.1")
            command("ip", "-n", router, "route", "add", f"{net}.0.0/16", "via", "10.78.0.2")
            _shape(router, "home", self.home_down, self.queue_nbytes)
            _shape(home, "up0", self.home_up, self.queue_nbytes)
            router = home
        for i, (down, up) in enumerate(zip(self.down, self.up, strict=True)):
            client = self._add(client_name(i))
            if self.client_rtts:
                delay = self._add(f"delay{i}")
                _veth((router, f"down{i}"), (delay, "left"))
                _veth((delay, "right"), (client, "up0"))
                _delay(delay, self.client_rtts[i] / 2, 0.0, self._undo)
            else:
                _veth((router, f"down{i}"), (client, "up0"))
            _address(router, f"down{i}", f"{net}.{i + 1}.1/24")
            _address(client, "up0", f"{net}.{i + 1}.2/24", via=f"{net}.{i + 1}.1", congestion=self.congestion)
            _shape(router, f"down{i}", down, self.queue_nbytes)
            _shape(client, "up0", up, self.queue_nbytes)

        if self.client_cores < math.inf:
            ends = {SERVER: math.inf} | dict.fromkeys(self.clients, self.client_cores)
            self._processors = {
                name: _processor(self._namespaces[name], cores, self._undo) for name, cores in ends.items()
            }

    def _add(self, name: str) -> str:
        self._namespaces[name] = _namespace(name, self._undo)
        return self._namespaces[name]

    def _start_peers(self) -> None:
        for name in (SERVER, *self.clients):
            words = [sys.executable, "-m", "tests.network.peer", name, f"tcp://{self._net}.0.1:{PORT}"]
            self._peers[name] = _start(self._namespaces[name], words, self._undo)
        for name in self._peers:
            assert self._hear(name) == ["ready"], name
        # one after the other, and here, so that no measurement pays for the first ARP request
        for name in self.clients:
            self.run({name: [["connect"]], SERVER: [["greet", 1]]})

    def _hear(self, name: str) -> list[Any]:
        pipe = self._peers[name].stdout
        assert pipe is not None
        line = pipe.readline()
        assert line, f"{name} ended: its message is above"
        return cast(list[Any], json.loads(line))


def client_name(i: int) -> str:
    """The name of client ``i``'s end."""
    return f"client{i}"


def _namespace(name: str, undo: ExitStack) -> str:
    namespace = f"fedbr-{os.getpid()}-{next(_numbers)}-{name}"
    command("ip", "netns", "add", namespace)
    undo.callback(command, "ip", "netns", "del", namespace)
    with _inside(namespace):
        # The last: no connection may learn from the one before it.
        for key in ("ip_forward", "tcp_slow_start_after_idle", "tcp_no_metrics_save"):
            Path("/proc/sys/net/ipv4", key).write_text("1")
    command("ip", "-n", namespace, "link", "set", "lo", "up")
    return namespace


def _congestion_control() -> str:
    offered = Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text().split()
    return "cubic" if "cubic" in offered else "reno"


def _veth(one: tuple[str, str], other: tuple[str, str]) -> None:
    command(*f"ip link add name {one[1]} netns {one[0]} type veth peer name {other[1]} netns {other[0]}".split())
    for namespace, interface in (one, other):
        with _inside(namespace):
            _switch_offloads_off(interface)
        command("ip", "-n", namespace, "link", "set", "dev", interface, "up")


def _address(
    namespace: str, interface: str, address: str, via: str | None = None, congestion: str = "", to: str = "default"
) -> None:
    command("ip", "-n", namespace, "address", "add", address, "dev", interface)
    if via is not None:
        # On the route: as a default of the namespace, it would have to be among those that the machine leaves to users.
        how = ["congctl", congestion] if congestion else []
        command("ip", "-n", namespace, "route", "add", to, "via", via, *how)


def _shape(namespace: str, interface: str, bits_per_second: float, queue_nbytes: int = FIFO_NBYTES) -> None:
    if math.isinf(bits_per_second):
        return
    # What a full bucket lets through at once is sent too early: keep it at a millisecond, or two frames.
    burst_nbytes = max(2 * FRAME_NBYTES, int(bits_per_second / 8 * 1e-3))
    shape = f"tbf rate {bits_per_second:.0f}bit burst {burst_nbytes} limit {queue_nbytes}"
    command("tc", "-n", namespace, "qdisc", "add", "dev", interface, "root", *shape.split())


def _processor(name: str, cores: float, undo: ExitStack) -> Path:
    """A control group: its processes get so many cores together at most, and before others of this machine."""
    first, second = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")
    period = str(PERIOD_MICROSECONDS)
    share = f"{cores * PERIOD_MICROSECONDS:.0f}" if cores < math.inf else ""
    settings = {"cpu.shares": "10240", "cpu.cfs_period_us": period, "cpu.cfs_quota_us": share or "-1"}
    if not first.exists():
        settings = {"cpu.weight": "1000", "cpu.max": f"{share or 'max'} {period}"}
    group = (first if first.exists() else second) / name
    try:
        group.mkdir()
        undo.callback(group.rmdir)
        for file, value in settings.items():
            (group / file).write_text(value)
    except OSError as error:
        raise UnavailableError(f"no control group with a share of the processors: {error}") from error
    return group


def _delay(namespace: str, seconds: float, loss: float, undo: ExitStack) -> subprocess.Popen[str]:
    """The delay line between the two interfaces of the namespace."""
    if (compiler := shutil.which("cc")) is None:
        raise UnavailableError("no C compiler for a delay line")
    folder = undo.enter_context(TemporaryDirectory(prefix="fedbr-"))
    program, seed = f"{folder}/delayline", next(_numbers)
    command(compiler, "-O2", "-o", program, str(HERE / "delayline.c"))
    return _start(namespace, [program, "left", "right", f"{seconds * 1e6:.0f}", f"{loss * 1e6:.0f}", str(seed)], undo)


def _start(
    namespace: str, words: Sequence[str], undo: ExitStack, processor: Path | None = None
) -> subprocess.Popen[str]:
    """A process that ends with its standard input, at the latest."""
    inside, pipe = ["ip", "netns", "exec", namespace, *words], subprocess.PIPE
    if processor is not None:  # from outside of the namespace, which has a /sys of its own
        inside = ["sh", "-c", f'echo $$ >{processor}/cgroup.procs && exec "$@"', "sh", *inside]
    process = subprocess.Popen(inside, stdin=pipe, stdout=pipe, text=True, cwd=HERE.parent.parent)
    undo.callback(_end, process)
    return process


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.communicate(timeout=5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()


@contextmanager
def _inside(namespace: str) -> Iterator[None]:
    """This thread in the namespace; os.setns came with Python 3.12."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open("/proc/thread-self/ns/net") as home, open(f"/run/netns/{namespace}") as there:  # noqa: PTH123
        if libc.setns(there.fileno(), 0):
            raise UnavailableError(f"setns: {os.strerror(ctypes.get_errno())}")
        try:
            yield
        finally:
            assert libc.setns(home.fileno(), 0) == 0


def _switch_offloads_off(interface: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for what, number in _OFFLOADS.items():
            # struct ethtool_value { u32 cmd; u32 data; }, and struct ifreq with its address
            value = ctypes.create_string_buffer(struct.pack("II", number, 0))
            request = struct.pack("16sP16x", interface.encode(), ctypes.addressof(value))
            try:
                fcntl.ioctl(any_socket, _SIOCETHTOOL, request)
            except OSError as error:
                raise UnavailableError(f"{what} offload of {interface} cannot be switched off: {error}") from error

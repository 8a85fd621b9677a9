"""Remote workers: ``fedbr worker``, and the options of ``fedbr run --listen``.

Like all commands, these import slow modules only when they run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scenarios.api.requests import Option, ResumeRequest, RunRequest, TrainRequest
from scenarios.config.errors import ScenarioError

if TYPE_CHECKING:
    from coordinator.workers.sockets import RemoteAccess
    from scenarios.cluster.ray_engine import RayEngine

ENDPOINT = re.compile(r"tcp://([^\s:/]+|\[[0-9A-Fa-f:.%\w]+\]):([0-9]{1,5})")
MAX_PORT = 65535


@dataclass(frozen=True)
class RemoteOptions(TrainRequest):
    """Options of the commands that remote workers can join."""

    workers: Annotated[
        int | None,
        Option(
            "worker processes; by default one per core, on GPUs by memory; 0 with --listen; per node with --on", least=0
        ),
    ] = None
    listen: Annotated[str | None, Option("endpoint at which remote workers join", "tcp://HOST:PORT")] = None
    keys: Annotated[Path | None, Option("own key pair (fedbr worker --new-keys NAME)", "NAME.key")] = None
    allow: Annotated[str | None, Option("public keys of the remote workers, separated by commas", "A.pub,B.pub")] = None
    any_machine: Annotated[
        bool, Option("accept remote workers with other versions or processors; results are then not bit-identical")
    ] = False

    @property
    def works_elsewhere(self) -> bool:
        """Whether all visits are trained by node agents."""
        return self.on is not None or (self.listen is not None and self.workers == 0)

    def engine(self) -> RayEngine | None:
        """The cluster that does the work; None without --on. ScenarioError for options that do not go with it."""
        if self.on is None:
            return None
        named = [name for name, value in (("--keys", self.keys), ("--allow", self.allow)) if value]
        if named:
            raise ScenarioError(f"{named[0]}: the keys are made for each run with --on; leave it out")
        if self.any_machine:
            raise ScenarioError("--any-machine: needs --listen; with --on, nodes of other kinds are left out")
        if self.workers == 0:
            raise ScenarioError("--workers 0: every node needs a worker; leave it out for one per core of the node")
        if self.listen is not None:
            _check_endpoint("--listen", self.listen)
        from scenarios.cluster.ray_engine import RayEngine

        return RayEngine(self.on, self.workers, listen=self.listen)

    def remote_access(self) -> RemoteAccess | None:
        """The endpoint and keys for remote workers; None without --listen, and with --on. ScenarioError for
        incomplete options."""
        if self.on is not None:
            return None
        if self.listen is None:
            options = (("--keys", self.keys), ("--allow", self.allow), ("--any-machine", self.any_machine))
            named = [name for name, value in options if value]
            if named:
                raise ScenarioError(f"{named[0]}: needs --listen tcp://HOST:PORT")
            if self.workers == 0:
                raise ScenarioError(
                    "--workers 0: the run would have no workers; let remote workers join with --listen tcp://HOST:PORT"
                )
            return None
        _check_endpoint("--listen", self.listen)
        if self.keys is None or not self.allow:
            raise ScenarioError(
                f"--listen {self.listen}: needs --keys NAME.key and --allow A.pub,B.pub, since remote workers join by "
                "key only (fedbr worker --new-keys NAME makes key pairs)"
            )
        from coordinator.workers.sockets import RemoteAccess
        from edge.runtime.keys import read_pair, read_public

        pair = read_pair(self.keys)
        files = [Path(name.strip()) for name in self.allow.split(",")]
        names = {read_public(file).decode(): file.stem for file in files}
        return RemoteAccess(self.listen, pair.public, pair.secret, list(names), self.any_machine, names)


@dataclass(frozen=True)
class RunOptions(RemoteOptions, RunRequest):
    """Options of `run` as a command."""


@dataclass(frozen=True)
class ResumeOptions(RemoteOptions, ResumeRequest):
    """Options of `resume` as a command."""


def _check_endpoint(option: str, endpoint: str) -> None:
    match = ENDPOINT.fullmatch(endpoint)
    if match is None or not 0 < int(match[2]) <= MAX_PORT:
        raise ScenarioError(f"{option} {endpoint}: must be tcp://HOST:PORT")


def worker(
    connect: Annotated[
        str | None, typer.Option("--connect", metavar="tcp://HOST:PORT", help="endpoint at which the run listens")
    ] = None,
    keys: Annotated[
        Path | None, typer.Option("--keys", metavar="NAME.key", help="own key pair (--new-keys NAME)")
    ] = None,
    server: Annotated[Path | None, typer.Option("--server", metavar="NAME.pub", help="the run's public key")] = None,
    new_keys: Annotated[
        str | None,
        typer.Option(
            "--new-keys", metavar="NAME", help="only make a key pair, for a run or its workers: NAME.key and NAME.pub"
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="folder of the key pair, by default here")] = None,
    workers: Annotated[
        int | None,
        typer.Option("--workers", min=1, max=4096, help="worker processes; by default one per core, on GPUs by memory"),
    ] = None,
    device: Annotated[str, typer.Option("--device", help="cpu, cuda, cuda:N, or auto: as the run's")] = "auto",
    data: Annotated[Path | None, typer.Option("--data", help="folder of data sets, searched first")] = None,
    no_sources: Annotated[
        bool, typer.Option("--no-sources", help="refuse the run's own modules, which are code that runs here")
    ] = False,
    wait: Annotated[float, typer.Option("--wait", min=0.1, help="seconds to wait for a run to answer")] = 60.0,
) -> None:
    """Join a run on another machine with this one's workers.

    Exit codes: 0 the run has ended, 2 bad usage, 3 rejected, not found or lost, 4 stopped by Ctrl-C.
    """
    required = {"--connect": connect, "--keys": keys, "--server": server}
    if new_keys is not None:
        for option in (name for name, value in required.items() if value is not None):
            raise ScenarioError(f"{option}: does not go with --new-keys, which only makes a key pair")
        _make_keys(new_keys, out or Path())
        return
    if out is not None:
        raise ScenarioError(f"--out {out}: is the folder of a key pair: add --new-keys NAME")
    if connect is None or keys is None or server is None:
        missing = next(option for option, value in required.items() if value is None)
        raise ScenarioError(f"worker: needs {missing}; it joins with --connect, --keys and --server")
    from edge.runtime.connection import Credentials
    from edge.runtime.keys import read_pair, read_public
    from scenarios.cluster.node_agent import NodeOptions, join_run
    from scenarios.config.cache import cache_folder
    from scenarios.run.host import check_workers, choose_device

    check_workers(workers)
    _check_endpoint("--connect", connect)
    credentials = Credentials(read_pair(keys), read_public(server))
    if device != "auto":
        choose_device(device)
    root = None if data is None else str(data)
    options = NodeOptions(workers, device, root, str(cache_folder()), wait, takes_sources=not no_sources)
    raise typer.Exit(join_run(connect, credentials, options))


def _make_keys(name: str, folder: Path) -> None:
    from edge.runtime.keys import make

    private, public = make(name, folder)
    print(f"{private}  private: keep it on this machine\n{public}  public: copy it to the other machines")

"""Why no Ray cluster answers at an address, told within seconds: Ray itself would try for two minutes.

Ray's own way to the cluster is asked first, with short limits: the address, the port, the protocol there, the token. It
says nothing of a cluster that answers slowly later on. Only `scenarios.cluster.ray_driver` imports this module. Of Ray
it uses what is no public interface, as its own command ``ray health-check`` does: where that is missing, all is left to
Ray.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from importlib import import_module
from typing import Any

from scenarios.cluster.ray_engine import AUTO, is_address

CLIENT = "ray://"
CLIENT_METHOD = "/ray.rpc.RayletDriver/ClusterInfo"
"""Of the server for clients alone"""
NO_PROXY = (("grpc.enable_http_proxy", 0),)
"""As Ray has it, unless it is told otherwise"""
PORT_SECONDS = 3.0
"""For a port to accept a connection."""
PROTOCOL_SECONDS = 20.0
"""For what listens there to speak gRPC, as every Ray cluster does: on an idle machine at once, on a busy one later."""


def check_reachable(address: str) -> None:
    """ConnectionError if no cluster answers at ``auto``, ``HOST:PORT`` or ``ray://HOST:PORT``; the text has the reason.

    Ray's own settings hold, as for its connection: a token, TLS.
    """
    place = named_address(address)
    is_client = place.startswith(CLIENT)
    canonical = _private("ray._private.services", "canonicalize_bootstrap_address_or_die")
    if is_client:
        place = place.removeprefix(CLIENT)
    elif canonical is not None:  # such as that of this machine's network for one of loopback
        place = str(canonical(place))
    if place == AUTO:
        return  # Ray knows which it is
    host, _, port = place.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), PORT_SECONDS).close()
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConnectionError(f"no cluster is at {place}: {reason}; `ray start --head` starts one") from None
    _check_protocol(place, is_client)
    if not is_client:
        _check_head(place)


def named_address(address: str) -> str:
    """The same, or what RAY_ADDRESS has in place of ``auto``; ConnectionError if that is no address of a cluster.

    Ray would start a cluster of its own for ``local``.
    """
    named = os.environ.get("RAY_ADDRESS") or AUTO if address == AUTO else address
    if named != AUTO and not is_address(named):
        raise ConnectionError(f"RAY_ADDRESS = {named}: must be HOST:PORT or ray://HOST:PORT")
    return named


def _private(module: str, name: str) -> Callable[..., Any] | None:
    try:
        return getattr(import_module(module), name, None)
    except ImportError:
        return None


def _check_protocol(place: str, is_client: bool) -> None:
    connect = _private("ray._private.grpc_utils", "init_grpc_channel")
    if connect is None:
        return
    grpc: Any = import_module("grpc")
    channel = connect(place, NO_PROXY)
    try:
        grpc.channel_ready_future(channel).result(PROTOCOL_SECONDS)
        if is_client:
            channel.unary_unary(CLIENT_METHOD)(b"", timeout=PROTOCOL_SECONDS)
    except grpc.FutureTimeoutError:
        why = f"it has not answered within {PROTOCOL_SECONDS:g} s"
        raise ConnectionError(f"at {place} is something else than a Ray cluster, or a stuck one: {why}") from None
    except grpc.RpcError as error:  # any other says that there is such a server: the call lacks its client's name
        if error.code() == grpc.StatusCode.UNIMPLEMENTED:
            hint = "as a rule it is 10001; the head's own port is named without ray://"
            raise ConnectionError(f"at {place} is no port for clients of a Ray cluster: {hint}") from None
        if error.code() == grpc.StatusCode.UNAUTHENTICATED:
            raise ConnectionError(_refusal(place, error.details())) from None
    finally:
        channel.close()


def _refusal(place: str, why: str) -> str:
    first = why.partition(". ")[0].strip().removeprefix("RPC error: ")
    return f"the cluster at {place} refuses: {first}; RAY_AUTH_MODE=token and RAY_AUTH_TOKEN give it"


def _check_head(place: str) -> None:
    connect = _private("ray._raylet", "GcsClient")
    if connect is None:
        return
    try:
        connect(place)
    except Exception as error:  # Ray has several, and says nothing of them
        if "Authentication" in type(error).__name__:
            raise ConnectionError(_refusal(place, str(error))) from None
        why = str(error).partition(". ")[0].strip().removeprefix("RPC error: ")
        hint = f"its port for clients would be ray://{place}"
        raise ConnectionError(f"at {place} is no head of a Ray cluster: {why}; {hint}") from None

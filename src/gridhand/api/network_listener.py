"""NetworkListener: the TCP sockets of a controller, with TLS if it has a certificate.

Everything that can be wrong with them is found before the controller takes its store.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import socket
import ssl
from typing import Any, NamedTuple

from gridhand.controller.listen_options import ListenOptions
from gridhand.core.errors import GridError, InvalidInput

_TRIES = 20  # to find a port that is free for all addresses of a name


class NetworkListener(NamedTuple):
    """Sockets that are bound, and do not listen yet: nobody is let in before we can answer."""

    sockets: list[socket.socket]
    tls: ssl.SSLContext | None
    url: str

    @property
    def port(self) -> int:
        return int(self.sockets[0].getsockname()[1])

    def close(self) -> None:
        for bound in self.sockets:
            bound.close()


def open_listener(options: ListenOptions) -> NetworkListener | None:
    """Bind the sockets; None if no port is configured. Raise GridError if that is not safe."""
    if options.port is None:
        return None
    host = options.host or "localhost"
    addresses, tls = _resolve(host, options.port), _tls(options)
    if tls is None and not options.insecure and not all(_is_loopback(one) for _, one in addresses):
        serve = f"grid serve --host {host} --port {options.port}"
        raise GridError(
            f"without encryption, everybody on the network of {host} could read the tokens",
            hint=f"`{serve} --tls-cert FILE --tls-key FILE` encrypts; `{serve} --insecure` accepts"
            " the risk.",
        )
    sockets = _bind_all(addresses, options.port)
    port = sockets[0].getsockname()[1]
    scheme = "http" if tls is None else "https"
    return NetworkListener(sockets, tls, f"{scheme}://{_shown(host)}:{port}")


def _shown(host: str) -> str:
    """Return the host as a link has it: one that stands for all addresses is this machine."""
    if host in ("0.0.0.0", "::", "*"):
        return socket.gethostname()
    return f"[{host}]" if ":" in host else host


def _resolve(host: str, port: int) -> list[tuple[socket.AddressFamily, tuple[Any, ...]]]:
    wanted = None if host == "*" else host
    try:
        found = socket.getaddrinfo(wanted, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise InvalidInput("host", host, "a name or an address of this machine") from error
    return list(dict.fromkeys((family, address) for family, _, _, _, address in found))


def _is_loopback(address: tuple[Any, ...]) -> bool:
    return ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback


def _bind_all(
    addresses: list[tuple[socket.AddressFamily, tuple[Any, ...]]], port: int
) -> list[socket.socket]:
    for _ in range(_TRIES):
        sockets: list[socket.socket] = []
        try:
            for family, address in addresses:
                chosen = sockets[0].getsockname()[1] if sockets else port
                with contextlib.suppress(_AddressMissing):
                    sockets.append(_bind(family, (address[0], chosen, *address[2:])))
            if sockets:
                return sockets
            raise _cannot_listen(addresses[0][1], "this machine does not have the address")
        except OSError as error:
            for bound in sockets:
                bound.close()
            if port != 0 or error.errno != errno.EADDRINUSE:
                raise _cannot_listen(addresses[0][1], error.strerror or str(error)) from error
    raise _cannot_listen(addresses[0][1], "no port is free")


class _AddressMissing(Exception):
    """A name stands for an address that this machine does not have, as ::1 without IPv6."""


def _bind(family: socket.AddressFamily, address: tuple[Any, ...]) -> socket.socket:
    try:
        bound = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise _AddressMissing from error
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.bind(address)
        bound.setblocking(False)
    except OSError as error:
        bound.close()
        if error.errno == errno.EADDRNOTAVAIL:
            raise _AddressMissing from error
        raise
    return bound


def _cannot_listen(address: tuple[Any, ...], why: str) -> GridError:
    return GridError(
        f"cannot listen at {address[0]} port {address[1]}: {why}",
        hint="Choose another with --host and --port, or end what listens there.",
    )


def _tls(options: ListenOptions) -> ssl.SSLContext | None:
    if options.tls_cert is None or options.tls_key is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(
            os.path.expanduser(options.tls_cert), os.path.expanduser(options.tls_key)
        )
    except (OSError, ssl.SSLError) as error:
        raise GridError(
            f"the certificate cannot be used: {error}",
            hint="--tls-cert takes a certificate and --tls-key its private key, as PEM files.",
        ) from error
    return context

"""ListenOptions: where the HTTP API listens, from the command line and the configuration."""

from __future__ import annotations

from typing import NamedTuple

from gridhand.config.blocks import HttpBlock
from gridhand.core.errors import InvalidInput

PORT = 7070


class ListenOptions(NamedTuple):
    """An address and a certificate. Without a port nothing listens on the network."""

    host: str | None = None
    port: int | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    insecure: bool = False

    def over(self, block: HttpBlock) -> ListenOptions:
        """Return these options where they say something, and those of the configuration elsewhere.

        A certificate and its key come from the same place.
        """
        if (self.tls_cert is None) is not (self.tls_key is None):
            raise InvalidInput("tls", self.tls_cert or self.tls_key, "--tls-cert and --tls-key")
        tls = self if self.tls_cert is not None else block
        default = None if self.host is None else PORT
        return ListenOptions(
            host=self.host or block.host,
            port=self.port if self.port is not None else block.port or default,
            tls_cert=tls.tls_cert,
            tls_key=tls.tls_key,
            insecure=self.insecure or block.insecure,
        )

"""Where the members are: `a=127.0.0.1:7101,b=127.0.0.1:7102,c=127.0.0.1:7103`."""

from __future__ import annotations

import ipaddress
import random
import re
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from replicated_kv.errors import KeyValueError

Address = tuple[str, int]
Members = Mapping[str, Address]
_PORTS: Final = range(20_000, 32_000)
"""Below those that the kernel takes for the other end of a connection, so that a member finds its port free again."""
_MEMBER: Final = re.compile(r"([A-Za-z0-9-]{1,64})=([0-9.]+):([0-9]{1,5})", re.ASCII)


def parse_members(text: str) -> dict[str, Address]:
    """KeyValueError: not the form above, a name occurs twice, or an address that other machines can reach."""
    found: dict[str, Address] = {}
    for part in text.split(","):
        match = _MEMBER.fullmatch(part.strip())
        if match is None or match[1] in found or not 0 < int(match[3]) < 65536:
            raise KeyValueError(f"{part.strip()!r} is not a member: write name=address:port, each name once")
        # Members believe each other, and clients, without a secret: so only this machine may speak to them.
        if not _is_loopback(match[2]):
            raise KeyValueError(f"{match[2]} is not an address of this machine alone: use 127.0.0.1")
        found[match[1]] = (match[2], int(match[3]))
    return found


def format_members(members: Members) -> str:
    """What `parse_members` reads."""
    return ",".join(f"{name}={host}:{port}" for name, (host, port) in members.items())


def local_members(names: Sequence[str]) -> dict[str, Address]:
    """Addresses with ports of this machine that are free at this moment."""
    found: dict[str, Address] = {}
    for name in names:
        found[name] = next(
            address
            for port in random.sample(_PORTS, len(_PORTS))
            if (address := ("127.0.0.1", port)) not in found.values() and _is_free(address)
        )
    return found


def member_command(
    name: str, members: Members, directory: Path, *, term: int, leader: str, options: Sequence[str] = ()
) -> list[str]:
    """The command line that runs a member."""
    command = [sys.executable, "-m", "replicated_kv", "--members", format_members(members), "member", name]
    return [*command, "--directory", str(directory), "--term", str(term), "--leader", leader, *options]


def _is_free(address: Address) -> bool:
    try:
        socket.create_server(address).close()
    except OSError:
        return False
    return True


def _is_loopback(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).is_loopback
    except ValueError:
        return False

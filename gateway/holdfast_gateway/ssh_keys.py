"""Which SSH key, or which certificate, is whom: lines as in OpenSSH's authorized_keys.

    user="ana",groups="dev,ops" ssh-ed25519 AAAA… ana's laptop
    cert-authority,principals="ana",user="ana@example.com" ssh-ed25519 AAAA… our CA
    cert-authority,principals="*@example.com",user="%p",groups="staff" ssh-ed25519 AAAA… our CA

Invariants: nobody is one of Kubernetes' own users or in one of its groups (`system:…`), but for the
group of everybody who was authenticated. A line that is not understood whole maps nobody: an option
we do not know may have been meant to forbid something, so it is not skipped, the line is.
"""

from __future__ import annotations

import fnmatch
import ipaddress
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import asyncssh

from holdfast_gateway import log
from holdfast_wire.errors import BadRequest, Unauthenticated

OPTIONS: Final = frozenset({"user", "groups", "from", "principals", "cert-authority"})
_KEY: Final = re.compile(r"(?:^|[ \t])((?:ssh|sk-ssh|ecdsa|sk-ecdsa)-[\w.@-]+[ \t]+AAAA[\w+/=]+)")
_PRINCIPAL: Final = "%p"
# What Kubernetes lets somebody be called is wide; a control character is never part of it.
_NAME: Final = re.compile(r"[^\x00-\x20\x7f-\x9f\"\\]{1,253}")
RESERVED: Final = "system:"
# Of everybody whom an API server has authenticated, so that RBAC says the same of them here.
_AUTHENTICATED: Final = "system:authenticated"
_MAX_FILE: Final = 1 << 20
_MAX_FILES: Final = 100

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a key stands for, and by which key that was."""

    user: str
    groups: tuple[str, ...]
    fingerprint: str
    """Of the key, or of the authority that signed it."""
    principals: tuple[str, ...] | None = None
    """What the certificate says, if it was one."""


@dataclass(frozen=True, slots=True)
class Line:
    key: asyncssh.SSHKey
    user: str
    groups: tuple[str, ...] = ()
    networks: tuple[Network, ...] = ()
    principals: tuple[str, ...] | None = None
    """Patterns, of an authority; None of a plain key."""

    def identity(
        self, key: asyncssh.SSHKey, address: str, principals: Sequence[str] | None
    ) -> Identity | None:
        """Of who comes with this key, if this line maps him."""
        if (principals is None) != (self.principals is None):
            return None
        if key.public_data != self.key.public_data:
            return None
        if self.networks and not _within(address, self.networks):
            return None
        user = self.user
        if principals is not None:
            matched = next((one for one in principals if _matches(one, self.principals)), None)
            if matched is None:
                return None
            user = user.replace(_PRINCIPAL, matched)
        if not _NAME.fullmatch(user) or _reserved(user):
            return None
        said = tuple(principals) if principals is not None else None
        return Identity(user, (*self.groups, _AUTHENTICATED), key.get_fingerprint(), said)


def _reserved(name: str) -> bool:
    return name.lower().startswith(RESERVED)


def _within(address: str, networks: tuple[Network, ...]) -> bool:
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(found, "ipv4_mapped", None) or found
    return any(mapped in network for network in networks)


def _matches(principal: str, patterns: tuple[str, ...] | None) -> bool:
    return any(fnmatch.fnmatchcase(principal, pattern) for pattern in patterns or ())


def parse(text: str, owner: str = "") -> Iterator[Line | str]:
    """The lines of a file, or why one is none. `owner` is who a plain key is if its line does not
    say so; without one it must."""
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if line and not line.startswith("#"):
            try:
                yield _line(line, owner)
            except (ValueError, asyncssh.KeyImportError) as error:
                yield f"line {number}: {error}"


def _line(line: str, owner: str) -> Line:
    found = _KEY.search(line)
    if found is None:
        raise ValueError("there is no public key in it")
    options = _options(line[: found.start(1)].strip())
    key = asyncssh.import_public_key(found[1])
    if unknown := sorted(options.keys() - OPTIONS):
        raise ValueError(f"the option {unknown[0]!r} is not known here")
    user = options.get("user", owner if "cert-authority" not in options else "")
    if not user or not _NAME.fullmatch(user):
        raise ValueError('it has no user="NAME", or one that cannot be a name')
    groups = _several(options.get("groups", ""))
    if not all(_NAME.fullmatch(group) for group in groups):
        raise ValueError("one of its groups cannot be a name")
    if any(_reserved(name) for name in (user, *groups)):
        raise ValueError(f"names that begin with {RESERVED!r} are Kubernetes' own")
    networks = tuple(ipaddress.ip_network(one) for one in _several(options.get("from", "")))
    if "cert-authority" not in options:
        if "principals" in options or _PRINCIPAL in user:
            raise ValueError("principals are an authority's: it is not marked cert-authority")
        return Line(key, user, groups, networks)
    principals = _several(options.get("principals", ""))
    if not principals:
        raise ValueError('an authority needs principals="…": whom it may vouch for')
    return Line(key, user, groups, networks, principals)


def _options(text: str) -> dict[str, str]:
    lexer = shlex.shlex(text, posix=True, punctuation_chars="")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = ",", True, ""
    found: dict[str, str] = {}
    for word in lexer:
        name, _, value = word.partition("=")
        if name in found:
            raise ValueError(f"the option {name!r} is there twice")
        found[name] = value
    return found


def _several(text: str) -> tuple[str, ...]:
    return tuple(one for one in (part.strip() for part in text.split(",")) if one)


class Keys:
    """The lines of some files, or of the files in some folders, as they are now: a mounted Secret
    changes under us. What cannot be read maps nobody."""

    def __init__(self, places: Sequence[Path], owner: str = "") -> None:
        self._places, self._owner = tuple(places), owner
        self._stamp: tuple[object, ...] | None = None
        self._lines: tuple[Line, ...] = ()

    def lines(self) -> tuple[Line, ...]:
        files = [file for place in self._places for file in _files(place)]
        stamp = tuple((file, _stamp(file)) for file in files)
        if stamp != self._stamp:
            self._stamp = stamp
            self._lines = tuple(line for file in files for line in self._read(file))
            log.info("ssh_keys", files=[str(file) for file in files], lines=len(self._lines))
        return self._lines

    def find(
        self, key: asyncssh.SSHKey, address: str, principals: Sequence[str] | None = None
    ) -> Identity | None:
        found = (line.identity(key, address, principals) for line in self.lines())
        return next((one for one in found if one is not None), None)

    def still(self, identity: Identity, address: str) -> bool:
        """Whether he would be let in again, as the same."""
        known = (
            line.identity(line.key, address, identity.principals)
            for line in self.lines()
            if line.key.get_fingerprint() == identity.fingerprint
        )
        return next((one for one in known if one is not None), None) == identity

    def _read(self, file: Path) -> Iterator[Line]:
        try:
            with file.open(encoding="utf-8") as opened:
                text = opened.read(_MAX_FILE + 1)
            if len(text) > _MAX_FILE:
                raise ValueError(f"it has more than {_MAX_FILE} characters")
        except (OSError, ValueError) as error:
            log.warning("ssh_keys_unread", file=str(file), why=str(error))
            return
        for line in parse(text, self._owner):
            if isinstance(line, Line):
                yield line
            else:
                log.warning("ssh_key_refused", file=str(file), why=line)


def _files(place: Path) -> list[Path]:
    """A mounted folder has its files behind links, and names of its own that begin with '.'."""
    try:
        inside = sorted(place.iterdir()) if place.is_dir() else [place]
    except OSError:
        return []
    return [file for file in inside if file == place or not file.name.startswith(".")][:_MAX_FILES]


def _stamp(file: Path) -> tuple[int, ...] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


class Admission(asyncssh.SSHAuthorizedKeys):
    """What asyncssh asks, of one connection. It checks signatures, and a certificate's times."""

    def __init__(self, keys: Keys, look: Callable[[], bool]) -> None:
        super().__init__()
        self._keys, self._look = keys, look

    def validate(
        self,
        key: asyncssh.SSHKey,
        client_host: str,
        client_addr: str,
        cert_principals: Sequence[str] | None = None,
        ca: bool = False,
    ) -> dict[str, object] | None:
        if not self._look():
            return None
        principals = (cert_principals or ()) if ca else None
        found = self._keys.find(key, client_addr, principals)
        # 'principals' tells asyncssh that they were looked at: the name somebody logs in with is a
        # session's, not one of his own.
        return {"identity": found, "principals": True} if found is not None else None

    def validate_x509(self, cert: object, client_host: str, client_addr: str) -> tuple[None, None]:
        return None, None


def no_longer() -> Unauthenticated:
    return Unauthenticated("your key is not let in any more", "ask who keeps the gateway's keys")


def host_key(path: Path, *, make: bool) -> asyncssh.SSHKey:
    """The gateway's own; made, once, where that is asked for."""
    if make and not path.exists():
        fresh = asyncssh.generate_private_key("ssh-ed25519", comment="holdfast")
        path.touch(mode=0o600)
        path.write_bytes(fresh.export_private_key())
    try:
        return asyncssh.read_private_key(path)
    except (OSError, asyncssh.KeyImportError) as error:
        raise BadRequest(
            f"the SSH host key {path} cannot be read: {error}",
            "make one with: ssh-keygen -t ed25519 -N '' -f FILE",
        ) from error

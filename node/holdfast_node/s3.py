"""Checkpoints in a bucket of any store that speaks S3, sealed here before they are sent.

    PREFIX/SESSION-UID/CHECKPOINT/parts/...   sealed
    PREFIX/SESSION-UID/CHECKPOINT/manifest    signed; written last, removed first

So whatever has a manifest is whole. Who has the bucket but not the data keys can read nothing and
pass nothing off; it can delete. Another cluster may use the same bucket. Its checkpoints are left
alone: what is swept has in its manifest the mark of a CA of this cluster's nodes, or had a
Checkpoint here while this agent ran. The calls block: use a thread.
"""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import obstore
from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import S3Store

from holdfast_wire.errors import AlreadyExists, HoldfastError, NotFound, Unavailable

from .pair import Fault, Manifest, Unfit, check_checkpoint
from .seal import sealed_size
from .settings import Bucket
from .store import MANIFEST, PARTS, Kept, check_whole, opened, raw_manifest

if TYPE_CHECKING:
    from obstore.store import S3Config

_CHUNK: Final = 16 << 20  # in one request; of 10,000 at most for each object
_AT_ONCE: Final = 4  # requests of one object
_REQUEST: Final = timedelta(seconds=60)
_RETRY: Final = timedelta(seconds=60)
_ASKED: Final = timedelta(seconds=5)  # a bucket that does not answer by then is not there
_ABANDONED: Final = timedelta(days=1)  # parts without a manifest: nobody uploads for so long


@dataclass(frozen=True, slots=True)
class _Found:
    size: int
    modified: datetime


class S3:
    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._seen: dict[str, Kept] = {}  # manifests do not change
        self._store = _connected(bucket, _REQUEST, timedelta(seconds=10), retries=6)
        self._asked = _connected(bucket, _ASKED, _ASKED, retries=1)

    def location(self, session: str, checkpoint: str) -> str:
        return f"s3://{self._bucket.name}/{self._key(session, checkpoint)}"

    def reach(self) -> None:
        """It answers, soon. Raises Unavailable."""
        with _told():
            next(iter(obstore.list(self._asked, self._bucket.prefix or None)), None)

    def put(self, sealed: Path) -> Kept:
        """Keeps the folder. Raises Unfit, AlreadyExists and Unavailable."""
        manifest = raw_manifest(sealed)
        read = Manifest.glance(manifest)
        key = self._key(read.facts.session, read.facts.checkpoint)
        with _told():
            if (known := self._signed(key)) is not None:
                if known != manifest:
                    raise AlreadyExists(f"the checkpoint {read.facts.checkpoint} is kept already")
                return self._kept(key, read, self._found(key))
            for name in read.parts:
                self._upload(sealed / PARTS, f"{key}/{PARTS}/{name}", name)
            check_whole(read, self._sizes(key, self._found(key)))
            obstore.put(self._store, f"{key}/{MANIFEST}", manifest, use_multipart=False)
            return self._kept(key, read, self._found(key))

    def get(self, session: str, checkpoint: str, into: Path) -> None:
        """Laid into the folder `into` as it is, sealed. Raises NotFound, Unfit and Unavailable."""
        key = self._key(session, checkpoint)
        with _told():
            raw = self._signed(key)
            if raw is None:
                raise NotFound(f"the checkpoint {checkpoint} is not in {self._bucket.name}")
            manifest = Manifest.glance(raw)
            if (manifest.facts.session, manifest.facts.checkpoint) != (session, checkpoint):
                raise Unfit(Fault.FOREIGN, f"{checkpoint} holds another checkpoint")
            check_whole(manifest, self._sizes(key, self._found(key)))
            for name, part in manifest.parts.items():
                path = into / PARTS / name
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                source = _Reader(self._store, f"{key}/{PARTS}/{name}", sealed_size(part.size))
                with io.BufferedReader(source, 1 << 20) as data, path.open("xb") as out:
                    shutil.copyfileobj(data, out, 1 << 20)
            (into / MANIFEST).write_bytes(raw)

    def list(self, session: str | None = None) -> Sequence[Kept]:
        """What is whole."""
        with _told():
            groups = self._groups(session)
            for key in self._seen.keys() - groups.keys() if session is None else ():
                del self._seen[key]
            kept = [self._look(key, found) for key, found in groups.items()]
        return sorted(filter(None, kept), key=lambda item: item.manifest.facts.created)

    def delete(self, session: str, checkpoint: str) -> None:
        key = self._key(session, checkpoint)
        with _told():
            # First of all, and alone: without it nobody takes the rest for a checkpoint.
            self._remove([f"{key}/{MANIFEST}"])
            self._remove(list(self._found(key)))

    def delete_abandoned(self, now: datetime) -> Sequence[str]:
        """Parts that nobody finished; their names."""
        gone: list[str] = []
        with _told():
            for key, found in self._groups(None).items():
                newest = max(item.modified for item in found.values())
                if f"{key}/{MANIFEST}" not in found and newest < now - _ABANDONED:
                    self._remove(list(found))
                    gone.append(key)
        return gone

    # -- the steps --------------------------------------------------------------------------------

    def _key(self, session: str, checkpoint: str) -> str:
        names = (check_checkpoint(session), check_checkpoint(checkpoint))
        return "/".join([*filter(None, [self._bucket.prefix]), *names])

    def _upload(self, parts: Path, path: str, name: str) -> None:
        with opened(parts, name) as source:
            if os.fstat(source.fileno()).st_size <= _CHUNK:
                obstore.put(self._store, path, source.read(), use_multipart=False)
            else:
                obstore.put(self._store, path, source, chunk_size=_CHUNK, max_concurrency=_AT_ONCE)

    def _sizes(self, key: str, found: Mapping[str, _Found]) -> dict[str, int]:
        prefix = f"{key}/{PARTS}/"
        return {path.removeprefix(prefix): item.size for path, item in found.items()
                if path.startswith(prefix)}  # fmt: skip

    def _signed(self, key: str) -> bytes | None:
        try:
            return bytes(obstore.get(self._store, f"{key}/{MANIFEST}").bytes())
        except FileNotFoundError:
            return None

    def _found(self, key: str) -> Mapping[str, _Found]:
        """The objects of one checkpoint, or of all below a prefix."""
        listed = obstore.list(self._store, key + "/" if key else None)
        return {
            item["path"]: _Found(item["size"], item["last_modified"])
            for chunk in listed
            for item in chunk
        }

    def _groups(self, session: str | None) -> dict[str, dict[str, _Found]]:
        prefix = "/".join(filter(None, [self._bucket.prefix, session]))
        depth = len(list(filter(None, self._bucket.prefix.split("/")))) + 2
        found: dict[str, dict[str, _Found]] = {}
        for path, item in self._found(prefix).items():
            words = path.split("/")
            rest = words[depth:]
            if rest == [MANIFEST] or (len(rest) > 1 and rest[0] == PARTS):
                found.setdefault("/".join(words[:depth]), {})[path] = item
        return found

    def _look(self, key: str, found: Mapping[str, _Found]) -> Kept | None:
        if key not in self._seen and f"{key}/{MANIFEST}" in found:
            raw = self._signed(key)
            try:
                read = Manifest.glance(raw or b"")
            except HoldfastError:
                return None
            if self._key(read.facts.session, read.facts.checkpoint) == key:
                self._seen[key] = self._kept(key, read, found)
        return self._seen.get(key)

    def _kept(self, key: str, read: Manifest, found: Mapping[str, _Found]) -> Kept:
        size = sum(item.size for path, item in found.items() if path.startswith(key + "/"))
        return Kept(read.facts.session, read.facts.checkpoint, size, read)

    def _remove(self, paths: Sequence[str]) -> None:
        if paths:
            try:
                obstore.delete(self._store, paths)
            except FileNotFoundError:
                return


def _connected(bucket: Bucket, request: timedelta, connect: timedelta, retries: int) -> S3Store:
    config: S3Config = {"region": bucket.region or "us-east-1"}
    if bucket.endpoint:
        config["endpoint"] = bucket.endpoint
    return S3Store(
        bucket.name,
        config=config,
        client_options={
            "timeout": request,
            "connect_timeout": connect,
            "allow_http": bucket.endpoint.startswith("http://"),
        },
        retry_config={"max_retries": retries, "retry_timeout": _RETRY},
    )


class _Reader(io.RawIOBase):
    """One object, a request at a time: a request that fails is made again by itself."""

    def __init__(self, store: S3Store, path: str, size: int) -> None:
        self._store, self._path, self._size = store, path, size
        self._at, self._chunk = 0, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, target: memoryview) -> int:  # type: ignore[override]
        if not self._chunk and self._at < self._size:
            length = min(_CHUNK, self._size - self._at)
            got = obstore.get_range(self._store, self._path, start=self._at, length=length)
            self._chunk, self._at = memoryview(bytes(got)), self._at + length
        count = min(len(target), len(self._chunk))
        target[:count], self._chunk = self._chunk[:count], self._chunk[count:]
        return count


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except (PermissionDeniedError, UnauthenticatedError) as error:
        raise Unavailable(
            f"the object store does not let the agents in: {_short(error)}",
            "look at the Secret that nodeAgent.s3.secretName names, and at the bucket's policy",
        ) from error
    except (BaseError, FileNotFoundError) as error:
        raise Unavailable(f"the object store does not do it: {_short(error)}") from error


def _short(error: Exception) -> str:
    """The first line: below it is the library's own account of it."""
    return (str(error).splitlines() or [repr(error)])[0][:300]

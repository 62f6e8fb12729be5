"""The API's client against a server over real TLS that answers in every wrong way."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from api_kit import LEASE_PATH, Authority, FakeApi, Fault, lease
from holdfast_sidecar.kube import Answer, Api, ApiError, same_object


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FakeApi]:
    with FakeApi(tmp_path) as fake:
        fake.put(lease())
        yield fake


@pytest.fixture
async def api(server: FakeApi) -> AsyncIterator[Api]:
    made = Api("127.0.0.1", server.port, server.credentials)
    yield made
    made.close()
    await turns()


async def turns() -> None:
    """The loop's own, to close what was aborted."""
    for _ in range(3):
        await asyncio.sleep(0)


def version(answer: Answer) -> str:
    return str(answer.body["metadata"]["resourceVersion"])


async def test_one_connection_for_all(server: FakeApi, api: Api) -> None:
    read = await api.get(LEASE_PATH)
    assert read.status == 200
    assert same_object(LEASE_PATH, read.body)
    written = await api.put(LEASE_PATH, read.body)
    assert written.status == 200
    assert version(written) != version(read)
    assert (await api.put(LEASE_PATH, read.body)).status == 409
    assert (await api.get(LEASE_PATH + "x")).body["reason"] == "NotFound"
    assert server.connections == 1
    assert server.methods() == ["GET", "PUT", "PUT", "GET"]


async def test_chunks_are_joined(server: FakeApi, api: Api) -> None:
    server.always = Fault(chunked=True)
    plain = await api.get(LEASE_PATH)
    assert plain.body == server.get()
    assert (await api.put(LEASE_PATH, plain.body)).status == 200
    assert server.connections == 1


HEAD = b"HTTP/1.1 200 OK\r\n"
ODD = {
    "no HTTP": b"220 mail.example ESMTP\r\n\r\n",
    "HTTP/2": b"HTTP/2 200\r\nContent-Length: 2\r\n\r\n{}",
    "no status": b"HTTP/1.1\r\n\r\n",
    "status of letters": b"HTTP/1.1 abc\r\nContent-Length: 0\r\n\r\n",
    "endless head": HEAD + b"X: " + b"y" * 200_000,
    "no length": HEAD + b"\r\n{}",
    "negative length": HEAD + b"Content-Length: -1\r\n\r\n",
    "length of letters": HEAD + b"Content-Length: two\r\n\r\n{}",
    "huge length": HEAD + b"Content-Length: 99999999999\r\n\r\n{}",
    "cut short": HEAD + b"Content-Length: 200\r\n\r\n{}",
    "no JSON": HEAD + b"Content-Length: 9\r\n\r\n<html></h",
    "no UTF-8": HEAD + b'Content-Length: 4\r\n\r\n{"\xff"',
    "deep": HEAD + b"Content-Length: 200000\r\n\r\n" + b"[" * 200_000,
    "long number": HEAD + b"Content-Length: 9000\r\n\r\n" + b"9" * 9000,
    "another coding": HEAD + b"Transfer-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}",
    "no chunk size": HEAD + b"Transfer-Encoding: chunked\r\n\r\n\r\n",
    "chunk of letters": HEAD + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n",
    "negative chunk": HEAD + b"Transfer-Encoding: chunked\r\n\r\n-5\r\n{}\r\n0\r\n\r\n",
    "chunk too long": HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}xx0\r\n\r\n",
    "huge chunk": HEAD + b"Transfer-Encoding: chunked\r\n\r\nfffffff\r\n",
    "endless size": HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"0" * 200_000,
    "nothing": b"",
}


@pytest.mark.parametrize("odd", ODD)
async def test_an_odd_answer_is_none_and_the_next_is_its_own(
    server: FakeApi, api: Api, odd: str
) -> None:
    server.faults.append(Fault(raw=ODD[odd], close="silent"))
    with pytest.raises(ApiError, match=f"GET {LEASE_PATH}: ."):
        await api.get(LEASE_PATH)
    assert (await api.get(LEASE_PATH)).body == server.get()
    assert server.connections == 2


@pytest.mark.parametrize("body", [b"[]", b"1", b"null", b'"x"', b""])
async def test_what_is_no_object_is_an_empty_one(server: FakeApi, api: Api, body: bytes) -> None:
    server.faults.append(Fault(raw=HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body))
    answer = await api.get(LEASE_PATH)
    assert answer == Answer(200, {})
    assert not same_object(LEASE_PATH, answer.body)


@pytest.mark.parametrize("body", [{}, {"metadata": None}, {"metadata": []}, {"metadata": {}}])
def test_not_the_object_asked_for(body: dict[str, object]) -> None:
    assert not same_object(LEASE_PATH, body)
    assert not same_object(LEASE_PATH, {"metadata": {"name": "other"}})


async def test_an_answer_before_the_answer(server: FakeApi, api: Api) -> None:
    content = json.dumps(server.get()).encode()
    real = HEAD + b"Content-Length: %d\r\n\r\n" % len(content) + content
    server.faults.append(Fault(raw=b"HTTP/1.1 100 Continue\r\n\r\n" + real))
    assert (await api.get(LEASE_PATH)).body == server.get()
    server.faults.append(Fault(raw=b"HTTP/1.1 204 No Content\r\n\r\n"))
    assert await api.get(LEASE_PATH) == Answer(204, {})
    assert (await api.get(LEASE_PATH)).status == 200
    assert server.connections == 1


async def test_what_came_unasked_is_no_answer_to_the_next(server: FakeApi, api: Api) -> None:
    stale = lease(99)
    content = json.dumps(stale).encode()
    extra = HEAD + b"Content-Length: %d\r\n\r\n" % len(content) + content
    server.faults.append(Fault(after=extra))
    assert (await api.get(LEASE_PATH)).body == server.get()
    assert (await api.get(LEASE_PATH)).body == server.get()
    assert server.connections == 2


async def test_a_connection_that_was_not_kept(server: FakeApi, api: Api) -> None:
    server.faults.append(Fault(close="said"))
    assert (await api.get(LEASE_PATH)).status == 200
    assert (await api.get(LEASE_PATH)).status == 200
    server.drop_connections()
    await asyncio.to_thread(server.drained)
    assert (await api.get(LEASE_PATH)).status == 200
    assert server.connections == 3


async def test_reset_and_lost_are_no_answer(server: FakeApi, api: Api) -> None:
    read = await api.get(LEASE_PATH)
    server.faults.append(Fault(reset=True))
    with pytest.raises(ApiError, match=r"PUT .*: ."):
        await api.put(LEASE_PATH, read.body)
    assert version(Answer(200, server.get())) == version(read)
    server.faults.append(Fault(lost=True))
    with pytest.raises(ApiError):
        await api.put(LEASE_PATH, read.body)
    assert version(await api.get(LEASE_PATH)) != version(read)


async def test_an_error_without_words_is_named(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise ConnectionResetError

    monkeypatch.setattr(asyncio, "open_connection", fail)
    with pytest.raises(ApiError, match=r"ConnectionResetError$"):
        await api.get(LEASE_PATH)


async def test_the_answer_to_a_cancelled_request_is_nobody_else_s(
    server: FakeApi, api: Api
) -> None:
    read = await api.get(LEASE_PATH)
    late = threading.Event()
    server.faults.append(Fault(hang=late))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await api.put(LEASE_PATH, read.body)
    asking = asyncio.create_task(api.get(LEASE_PATH + "x"))
    answer = await asking
    late.set()
    assert answer.status == 404
    assert (await api.get(LEASE_PATH)).status == 200
    assert server.connections == 2


async def test_cancelled_while_it_connects(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    with FakeApi(tmp_path / "x") as other:
        with other.lock:  # it accepts, and does not get round to the handshake
            api = Api("127.0.0.1", other.port, other.credentials)
            for _ in range(3):
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.02):
                        await api.get(LEASE_PATH)
        assert (await api.get(LEASE_PATH)).status == 404
        api.close()
        api.close()
        await turns()


async def test_the_token_is_read_for_each_request(server: FakeApi, api: Api) -> None:
    await api.get(LEASE_PATH)
    server.set_token("second-token")
    await api.get(LEASE_PATH)
    (server.credentials / "token").unlink()
    with pytest.raises(ApiError, match="token"):
        await api.get(LEASE_PATH)
    (server.credentials / "token").write_text("s\u00e9cret")
    with pytest.raises(ApiError) as caught:
        await api.get(LEASE_PATH)
    assert "cret" not in str(caught.value)
    server.set_token("third-token")
    await api.get(LEASE_PATH)
    assert [r.token for r in server.requests] == ["first-token", "second-token", "third-token"]


async def test_a_new_authority_is_taken_up(server: FakeApi, api: Api, tmp_path: Path) -> None:
    await api.get(LEASE_PATH)
    server.authority = Authority(tmp_path / "second")
    await api.get(LEASE_PATH)  # the connection there is goes on
    server.trust(server.authority)
    assert (await api.get(LEASE_PATH)).status == 200
    assert server.connections == 2


async def test_a_server_by_another_authority_is_not_talked_to(
    server: FakeApi, api: Api, tmp_path: Path
) -> None:
    server.trust(Authority(tmp_path / "other"))
    with pytest.raises(ApiError, match="certificate"):
        await api.get(LEASE_PATH)
    (server.credentials / "ca.crt").write_text("half a certif")
    with pytest.raises(ApiError):
        await api.get(LEASE_PATH)
    (server.credentials / "ca.crt").unlink()
    with pytest.raises(ApiError, match=r"ca\.crt"):
        await api.get(LEASE_PATH)
    assert server.requests == []
    server.trust(server.authority)
    assert (await api.get(LEASE_PATH)).status == 200


async def test_a_server_of_another_name_is_not_talked_to(server: FakeApi) -> None:
    api = Api("localhost", server.port, server.credentials)
    with pytest.raises(ApiError, match="certificate"):
        await api.get(LEASE_PATH)
    assert server.requests == []


def test_outside_a_pod(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for port in (None, "", "https"):
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "::1")
        monkeypatch.delenv("KUBERNETES_SERVICE_PORT", raising=False)
        if port is not None:
            monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
        with pytest.raises(ApiError, match="no pod"):
            Api.from_environment(tmp_path)

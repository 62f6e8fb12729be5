"""What a sidecar makes of a session's end when it was being suspended: asleep, or ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast_sidecar import spec
from holdfast_sidecar.agent import AgentError
from holdfast_sidecar.hibernate import SUSPENDING, Hibernation
from holdfast_sidecar.runner import Sidecar
from holdfast_wire.ids import session_name


@pytest.fixture
async def sidecar(tmp_path: Path) -> Sidecar:
    asked = spec.Spec(session_name("build"), "1", ("true",), 80, 24, 100, 0.0)
    return Sidecar(tmp_path, asked)


async def test_only_what_is_stored_is_asleep(sidecar: Sidecar, tmp_path: Path) -> None:
    assert not sidecar.asleep()
    Hibernation(sidecar, tmp_path)
    assert not sidecar.asleep()
    store = tmp_path / "store"
    (tmp_path / SUSPENDING).write_text(str(store))
    assert not sidecar.asleep()  # killed before it was stored: that is an end
    store.mkdir()
    assert sidecar.asleep()
    sidecar.session.abandon()


async def test_it_is_parked_before_it_is_sealed(sidecar: Sidecar, tmp_path: Path) -> None:
    made = Hibernation(sidecar, tmp_path)
    with pytest.raises(AgentError) as refused:
        await made._answer({"do": "seal"})
    assert refused.value.code == "not_parked"
    with pytest.raises(AgentError) as refused:
        await made._answer({"do": "suspend"})
    assert refused.value.code == "bad_request"
    await made._answer({"do": "park"})
    assert sidecar.session.parked
    sidecar.session.parking.close()
    sidecar.session.abandon()

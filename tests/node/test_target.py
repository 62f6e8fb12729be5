"""Where a session may go, by what its Node says of it."""

from __future__ import annotations

import platform
from typing import Any

import pytest

from holdfast_kube.client import Resource
from holdfast_node import cpu, target
from holdfast_node.pair import Fault, Unfit
from holdfast_wire.errors import Unavailable

SAME = cpu.features()


class Cluster:
    """Of one node."""

    def __init__(self, **notes: str) -> None:
        self.notes = {f"holdfast.dev/agent-{name}": text for name, text in notes.items()}

    async def get(self, _kind: Resource, _namespace: str, name: str) -> dict[str, Any] | None:
        return {"metadata": {"name": name, "annotations": self.notes}} if name == "m" else None


async def where(node: str = "m", **notes: str) -> tuple[str, int]:
    return (await target.look(Cluster(**notes), node, SAME)).address


@pytest.mark.parametrize(
    "told",
    [cpu.told(SAME), cpu.told((*SAME, "zz_newer")), "", "nonsense", cpu.told(SAME) + " cut"],
    ids=["same", "more", "silent", "nonsense", "altered"],
)
async def test_an_agent(told: str) -> None:
    assert await where(address="10.0.0.2:7318", cpu=told) == ("10.0.0.2", 7318)
    assert await where(address="[fd00::2]:7318", cpu=told) == ("fd00::2", 7318)


@pytest.mark.parametrize("address", ["", "10.0.0.2", "10.0.0.2:", ":7318", "10.0.0.2:x"])
async def test_no_agent(address: str) -> None:
    with pytest.raises(Unavailable, match="no agent is ready on node m"):
        await where(address=address)
    with pytest.raises(Unavailable, match="no agent is ready on node gone"):
        await where("gone", address="10.0.0.2:7318")


async def test_a_processor_that_lacks_something_is_refused_before_anything_is_frozen() -> None:
    """Whoever has no address dials nobody, and only over a link is anything stopped."""
    with pytest.raises(Unfit) as less:
        await where(address="10.0.0.2:7318", cpu=cpu.told(SAME[1:]))
    assert less.value.fault is Fault.CPU
    assert f"node m's processor lacks what the session may be using: {SAME[0]}" in str(less.value)
    assert "the same kind of processor" in str(less.value)
    kept = Cluster(address="10.0.0.2:7318", cpu=cpu.told(SAME[1:]))
    found = await target.look(kept, "m", None)
    assert found.address == ("10.0.0.2", 7318), "nothing is to run there"
    with pytest.raises(Unfit) as other:
        await where(address="10.0.0.2:7318", cpu=cpu.told(SAME, "m68k"))
    assert other.value.fault is Fault.ARCHITECTURE
    assert f"the session ran on {platform.machine()}, node m is m68k" in str(other.value)


def test_what_is_told_of_a_processor() -> None:
    text = cpu.told(("avx", "sse"), "x86_64")
    assert cpu.heard(text) == ("x86_64", ("avx", "sse"))
    assert cpu.heard(cpu.told((), "x86_64")) == ("x86_64", ())
    for other in ("", "x86_64", text + " vnni", text.removesuffix(" sse"), "x " + text):
        assert cpu.heard(other) is None
    assert len(cpu.told(SAME)) < 8192, "it stands in an annotation"
    assert cpu.heard(cpu.told(SAME)) == (platform.machine(), SAME)

"""Which key is whom."""

from __future__ import annotations

from pathlib import Path

import asyncssh
import pytest

from holdfast_gateway.ssh_channel import session_of_user, window
from holdfast_gateway.ssh_keys import Keys, Line, host_key, parse
from holdfast_wire.errors import BadName, BadRequest
from ssh_kit import public

KEY = asyncssh.generate_private_key("ssh-ed25519", comment="somebody's laptop")
OTHER = asyncssh.generate_private_key("ssh-ed25519")
EVERYBODY = "system:authenticated"


def keys(tmp_path: Path, text: str, owner: str = "") -> Keys:
    (tmp_path / "keys").write_text(text)
    return Keys([tmp_path / "keys"], owner)


def test_a_key_is_a_user_with_groups(tmp_path: Path) -> None:
    known = keys(tmp_path, f'# ours\n\nuser="ana@example.com",groups="dev, ops" {public(KEY)}\n')
    found = known.find(KEY, "10.0.0.1")
    assert found is not None
    assert (found.user, found.groups) == ("ana@example.com", ("dev", "ops", EVERYBODY))
    assert known.find(OTHER, "10.0.0.1") is None
    assert known.find(KEY, "10.0.0.1", ["ana@example.com"]) is None, "it is no authority"


def test_an_authority_vouches_for_its_principals_only(tmp_path: Path) -> None:
    known = keys(
        tmp_path,
        f'cert-authority,principals="ops",user="robot",groups="bots" {public(KEY)}\n'
        f'cert-authority,principals="*@example.com",user="%p" {public(KEY)}\n',
    )
    robot, cy = known.find(KEY, "::1", ["x", "ops"]), known.find(KEY, "::1", ["cy@example.com"])
    assert robot is not None
    assert cy is not None
    assert (robot.user, robot.groups) == ("robot", ("bots", EVERYBODY))
    assert (cy.user, cy.groups) == ("cy@example.com", (EVERYBODY,))
    assert known.find(KEY, "::1", ["cy@elsewhere.example"]) is None
    assert known.find(KEY, "::1", []) is None, "a certificate for everybody is for nobody here"
    assert known.find(KEY, "::1") is None, "the authority's own key is nobody's"
    assert known.find(KEY, "::1", ["a b@example.com"]) is None, "that cannot be a name"


@pytest.mark.parametrize(
    "options",
    [
        'user="system:admin"',
        'user="System:Admin"',
        'user="ana",groups="dev,system:masters"',
        'user="system:serviceaccount:kube-system:default"',
        'cert-authority,principals="*",user="system:%p"',
        'cert-authority,principals="*",user="ana",groups="system:masters"',
    ],
)
def test_nobody_is_kubernetes_own(
    tmp_path: Path, options: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Attack 44."""
    (said,) = parse(f"{options} {public(KEY)}")
    assert isinstance(said, str)
    assert "Kubernetes' own" in said
    known = keys(tmp_path, f'{options} {public(KEY)}\nuser="ben" {public(OTHER)}\n')
    assert known.find(KEY, "::1") is known.find(KEY, "::1", ["admin"]) is None
    assert known.find(OTHER, "::1") is not None, "the other lines count"


def test_no_principal_is_kubernetes_own(tmp_path: Path) -> None:
    """Attack 44: by an authority's word."""
    known = keys(tmp_path, f'cert-authority,principals="*",user="%p" {public(KEY)}\n')
    assert known.find(KEY, "::1", ["system:admin"]) is None
    assert known.find(KEY, "::1", ["ana"]) is not None


def test_from_where(tmp_path: Path) -> None:
    known = keys(tmp_path, f'user="ana",from="10.1.0.0/16,fd00::/8" {public(KEY)}\n')
    assert known.find(KEY, "10.1.2.3") is not None
    assert known.find(KEY, "::ffff:10.1.2.3") is not None
    assert known.find(KEY, "fd00::1%eth0") is not None
    assert known.find(KEY, "10.2.0.1") is None
    assert known.find(KEY, "unknown") is None


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ("", "no user"),
        ('groups="dev" ', "no user"),
        ('user="" ', "no user"),
        ('user="a b" ', "no user"),
        ('user="a\x1b[31m" ', "no user"),
        ('user="ana",groups="x y" ', "groups"),
        ('user="ana",restrict ', "'restrict' is not known"),
        ('user="ana",command="id" ', "'command' is not known"),
        ('user="ana",expiry-time="20200101" ', "'expiry-time' is not known"),
        ('user="ana",user="root" ', "twice"),
        ('user="ana",from="*.example.com" ', "IPv4 or IPv6"),
        ('user="ana",principals="x" ', "not marked cert-authority"),
        ('user="%p" ', "not marked cert-authority"),
        ('cert-authority,user="ana" ', "principals"),
        ('cert-authority,principals="ana" ', "no user"),
        ('user="ana ', "quotation"),
    ],
)
def test_a_line_that_is_not_understood_maps_nobody(options: str, why: str) -> None:
    (refused,) = parse(options + public(KEY))
    assert isinstance(refused, str)
    assert refused.startswith("line 1: ")
    assert why in refused


def test_a_bad_line_does_not_take_the_others_along() -> None:
    text = f'nonsense\nuser="ana" {public(KEY)}\nuser="bo" ssh-ed25519 AAAAnothing\n'
    found = list(parse(text))
    assert [isinstance(one, Line) for one in found] == [False, True, False]


def test_on_one_machine_a_plain_line_is_its_owners(tmp_path: Path) -> None:
    known = keys(tmp_path, f"{public(KEY)}\ncert-authority {public(OTHER)}\n", owner="ana")
    found = known.find(KEY, "127.0.0.1")
    assert found is not None
    assert found.user == "ana"
    assert known.find(OTHER, "127.0.0.1", ["ana"]) is None


def test_files_are_read_again_when_they_change(tmp_path: Path) -> None:
    """As the kubelet changes what is mounted: all of it at once, behind a link."""
    for name, key in (("..one", KEY), ("..two", OTHER)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "keys").write_text(f'user="ana" {public(key)}\n')
    (tmp_path / "..data").symlink_to("..one")
    (tmp_path / "people").symlink_to("..data/keys")
    known = Keys([tmp_path])
    ana = known.find(KEY, "::1")
    assert ana is not None
    assert known.still(ana, "::1")
    (tmp_path / "..data").unlink()
    assert known.find(KEY, "::1") is None, "what cannot be read maps nobody"
    assert not known.still(ana, "::1")
    (tmp_path / "..data").symlink_to("..two")
    assert not known.still(ana, "::1")
    assert known.find(OTHER, "::1") is not None


def test_a_key_that_is_somebody_elses_now_is_not_the_same(tmp_path: Path) -> None:
    known = keys(tmp_path, f'user="ana",groups="dev" {public(KEY)}\n')
    ana = known.find(KEY, "::1")
    assert ana is not None
    (tmp_path / "keys").write_text(f'user="ana",groups="development" {public(KEY)}\n')
    assert not known.still(ana, "::1"), "RBAC was asked about other groups"


def test_an_expired_line_is_no_shorter_way_in(tmp_path: Path) -> None:
    assert keys(tmp_path, "").find(KEY, "::1") is None
    assert Keys([tmp_path / "nothing"]).find(KEY, "::1") is None


def test_the_host_key_is_made_once(tmp_path: Path) -> None:
    path = tmp_path / "host"
    with pytest.raises(BadRequest, match="ssh-keygen"):
        host_key(path, make=False)
    first = host_key(path, make=True)
    assert path.stat().st_mode & 0o777 == 0o600
    assert host_key(path, make=True) == first == host_key(path, make=False)


def test_a_user_name_is_a_session_perhaps_with_its_namespace() -> None:
    assert session_of_user("build") == "build"
    assert session_of_user("build.team-a") == "team-a/build"
    with pytest.raises(BadName):
        session_of_user("team/build")


@pytest.mark.parametrize(
    ("said", "taken"), [((0, 0), (80, 24)), ((1, 1), (2, 1)), ((99999, 50), (1000, 50))]
)
def test_a_window_is_kept_within_bounds(said: tuple[int, int], taken: tuple[int, int]) -> None:
    assert window(*said) == taken

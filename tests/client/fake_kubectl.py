"""Stands in for kubectl: the API is files in $FAKE_CLUSTER, a pod is a real sidecar's socket.

cluster.json has `sessions` and `events` (objects), `pods` (name: path of its sidecar's socket),
`fails` (verb: [what it says, code]), `ends` (whether a session told to end or move does) and
`user`. Every call is a line of calls.jsonl. Runs without site-packages: it starts a few times in
each test.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from pathlib import Path
from typing import Any

FOLDER = Path(os.environ["FAKE_CLUSTER"])
GLOBAL = ("--kubeconfig=", "--context=", "--namespace=", "--request-timeout=")


def main() -> int:
    given = {}
    words = []
    for token in sys.argv[1:]:
        if token.startswith(GLOBAL):
            name, _, value = token.partition("=")
            given[name] = value
        else:
            words.append(token)
    with (FOLDER / "calls.jsonl").open("a") as calls:
        calls.write(json.dumps({"words": words, **given}) + "\n")
    cluster = json.loads((FOLDER / "cluster.json").read_text())
    verb = words[0]
    if verb in cluster["fails"]:
        said, code = cluster["fails"][verb]
        sys.stderr.write(said + "\n")
        return int(code)
    namespace = given.get("--namespace", "default")
    handlers = {"get": get, "patch": patch, "create": create, "auth": auth, "exec": relay,
                "annotate": annotate}  # fmt: skip
    return handlers[verb](cluster, namespace, words)


def say(body: object) -> int:
    sys.stdout.write(json.dumps(body))
    return 0


def get(cluster: dict[str, Any], namespace: str, words: list[str]) -> int:
    if words[1] == "node":
        known = words[2] in ("n1", "n2")
        return say({"metadata": {"name": words[2]}}) if known else missing(f'nodes "{words[2]}"')
    if words[1] == "events":
        return say({"items": cluster["events"]})
    everywhere = "--all-namespaces" in words
    sessions = [
        one
        for one in cluster["sessions"]
        if everywhere or one["metadata"]["namespace"] == namespace
    ]
    if words[2].startswith("-"):
        return say({"items": sessions})
    for one in sessions:
        if one["metadata"]["name"] == words[2]:
            return say(one)
    return missing(f'sessions.holdfast.dev "{words[2]}"')


def missing(what: str) -> int:
    sys.stderr.write(f"Error from server (NotFound): {what} not found\n")
    return 1


def patch(cluster: dict[str, Any], namespace: str, words: list[str]) -> int:
    for one in cluster["sessions"]:
        if (one["metadata"]["name"], one["metadata"]["namespace"]) == (words[2], namespace):
            wanted = json.loads(words[words.index("--patch") + 1])
            one["spec"] |= wanted.get("spec", {})
            if "ended" not in wanted.get("spec", {}):
                store(one, wanted, cluster["ends"])
            elif cluster["ends"]:
                one["status"] |= {"phase": "Ended", "exit": {"code": None, "signal": 15}}
            save(cluster)
            return 0
    return missing(words[2])


def store(one: dict[str, Any], wanted: dict[str, Any], done: bool) -> None:
    """A session that is to be suspended is, one that is to wake does; or it says why not."""
    wakes = "holdfast.dev/wake" in wanted.get("metadata", {}).get("annotations", {})
    sleeps = wanted.get("spec", {}).get("suspended", False)
    if not done:
        failed = ("Checkpointed", "CheckpointFailed")
        kind, reason = ("Ready", "CheckpointGone") if wakes else failed
        said = {"type": kind, "status": "False", "reason": reason, "message": "a device is open"}
        one["status"] |= {"conditions": [said]}
    elif sleeps:
        one["status"] |= {"phase": "Suspended", "suspended": {"checkpoint": "a-3-k1"}}
    elif wakes:
        epoch = one["status"]["epoch"] + 1
        pod = f"{one['metadata']['name']}-{epoch}"
        one["status"] |= {"phase": "Running", "epoch": epoch, "nodeName": "n2", "podName": pod}


def annotate(cluster: dict[str, Any], namespace: str, words: list[str]) -> int:
    """A session that is asked to move does, to the other node, if `ends` says that things happen;
    else its condition says why not."""
    (one,) = [one for one in cluster["sessions"] if one["metadata"]["name"] == words[2]]
    if words[-1].endswith("-"):
        return 0
    if cluster["ends"]:
        one["status"] |= {"epoch": one["status"]["epoch"] + 1, "nodeName": "n2"}
    else:
        said = {"type": "Movable", "status": "False", "reason": "MoveFailed", "message": "strace"}
        one["status"] |= {"conditions": [said]}
    save(cluster)
    return 0


def create(cluster: dict[str, Any], namespace: str, words: list[str]) -> int:
    made = json.load(sys.stdin)
    name = made["metadata"]["name"]
    if any(one["metadata"]["name"] == name for one in cluster["sessions"]):
        sys.stderr.write(
            f'Error from server (AlreadyExists): sessions.holdfast.dev "{name}" already exists\n'
        )
        return 1
    made["metadata"]["namespace"] = namespace
    pod = f"{name}-1"
    if pod in cluster["pods"] or ("forkFrom" in made["spec"] and cluster["ends"]):
        made["status"] = {"phase": "Running", "podName": pod, "epoch": 1}
    cluster["sessions"].append(made)
    save(cluster)
    return say(made)


def auth(cluster: dict[str, Any], namespace: str, words: list[str]) -> int:
    return say({"status": {"userInfo": {"username": cluster["user"]}}})


def save(cluster: dict[str, Any]) -> None:
    draft = FOLDER / "draft"
    draft.write_text(json.dumps(cluster))
    draft.rename(FOLDER / "cluster.json")


def relay(cluster: dict[str, Any], namespace: str, words: list[str]) -> int:
    assert words[1] == "-i"
    assert words[3:] == ["-c", "holdfast", "--", "holdfast-relay"]
    pod = words[2]
    if pod not in cluster["pods"]:
        return missing(f'pods "{pod}"')
    sidecar = socket.socket(socket.AF_UNIX)
    sidecar.connect(cluster["pods"][pod])
    with (FOLDER / f"{pod}.pid").open("w") as file:
        file.write(str(os.getpid()))

    def upstream() -> None:
        while data := os.read(0, 1 << 16):
            sidecar.sendall(data)
        sidecar.shutdown(socket.SHUT_WR)

    threading.Thread(target=upstream, daemon=True).start()
    while data := sidecar.recv(1 << 16):
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(1, rest) :]
    return 0


sys.exit(main())

"""A watch over connections that break: every change once and in order, and an end when it is refused."""

import itertools
import random
import threading
import time

import pytest

from stratlab.cluster import ClusterError
from stratlab.cluster import connection as connecting
from stratlab.cluster.connection import Patience
from stratlab.cluster.watching import ADDED, DELETED, MODIFIED, SYNCED, watch
from tests.stratlab.cluster.fake_api import serve

JOBS = "/apis/kubeflow.org/v1/namespaces/lab/pytorchjobs"


def job(name, **facts):
    return {"metadata": {"name": name, "labels": {"run": name}}, **facts}


def soon(seconds=20.0, **options):
    return Patience(deadline=time.monotonic() + seconds, pause_s=0.002, **options)


def tell(changes):
    return [(kind, thing["metadata"]["name"] if thing else "") for kind, thing in changes]


def test_it_is_a_watch_and_no_poll(api, connection):
    api.put(JOBS, job("a"))
    started = time.monotonic()
    assert tell(list(watch(connection, JOBS, patience=soon(0.6)))) == [(ADDED, "a"), (SYNCED, "")]
    assert len(api.requests) == 2, "one list, one watch"
    assert 0.5 < time.monotonic() - started < 2.5
    api.fault = lambda path, query: {"status": 503}
    said = []
    assert list(watch(connection, JOBS, patience=soon(0.7, say=said.append))) == []
    assert time.monotonic() - started < 5 and len(said) == 1


def test_a_denial_is_final_at_first_and_later_after_some_tries(api, connection):
    api.fault = lambda path, query: {"status": 403}
    with pytest.raises(ClusterError) as failure:
        list(watch(connection, JOBS, patience=soon()))
    assert failure.value.status == 403 and len(api.requests) == 1
    api.put(JOBS, job("a"))
    denials = itertools.chain([None], itertools.repeat({"status": 403}, 3), itertools.repeat(None))
    api.fault = lambda path, query: next(denials)
    changes = watch(connection, JOBS, patience=soon())
    assert tell([next(changes), next(changes)]) == [(ADDED, "a"), (SYNCED, "")]
    api.put(JOBS, job("a", spec=1))
    assert next(changes)[0] == MODIFIED
    api.fault = lambda path, query: {"status": 403, "drop": False} if "watch" in query else None
    api.closing = True  # ends the connection that is open
    with pytest.raises(ClusterError):
        list(changes)


def test_the_token_is_read_again_for_every_request(api, tmp_path):
    api.put(JOBS, job("a"))
    api.token = "first"
    (tmp_path / "token").write_text("first\n")
    with serve(api) as address:
        host, _, port = address.removeprefix("http://").partition(":")
        environ = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}
        inside = connecting.connect_in_cluster(environ, tmp_path)
        assert inside
        api.fault = lambda path, query: {"cut": 1} if "watch" in query else None
        changes = watch(inside, JOBS, patience=soon())
        assert [next(changes)[0], next(changes)[0]] == [ADDED, SYNCED]
        for number in range(3):
            # The kubelet writes the new token a moment after the old one stopped to be taken.
            api.token = f"token {number}"
            timer = threading.Timer(0.02, (tmp_path / "token").write_text, [api.token])
            timer.start()
            api.put(JOBS, job("a", spec=number))
            assert next(changes)[1]["spec"] == number
            timer.join()


@pytest.mark.parametrize("plain", [True, False])
def test_after_410_only_what_differs_is_told(api, connection, plain):
    api.put(JOBS, job("a"))

    def forget(path, query):
        if "watch" in query and "a" in api.collections[JOBS]:
            api.put(JOBS, job("b"))
            api.delete(JOBS, "a")
            api.compact()
        return {"plain_410": plain}

    api.fault = forget
    changes = watch(connection, JOBS, patience=soon())
    told = tell([next(changes) for _ in range(4)])
    assert told == [(ADDED, "a"), (SYNCED, ""), (DELETED, "a"), (ADDED, "b")]


def test_hundreds_of_disconnects_lose_and_double_nothing(api, connection):
    """Every change is told exactly once and in order, as long as the server remembers the past (no 410)."""
    chance, count, broken = random.Random(0), itertools.count(), []

    def fault(path, query):
        if "watch" not in query and chance.random() < 0.7:  # else the list never comes through
            return None
        status, cut = chance.choice([429, 500, 502, 503, 504]), chance.randrange(4)
        faults = [{"drop": True}, {"status": status}, *[{"cut": cut}] * 3, {"cut": cut, "half": True}]
        broken.append(chance.choice([*faults, {"cut": 0} if "watch" in query else None]))
        return broken[-1]

    def change():
        names = list(api.collections.get(JOBS, {}))
        if names and chance.random() < 0.2:
            api.delete(JOBS, chance.choice(names))
        else:
            api.put(JOBS, job(f"job-{chance.randrange(6)}", spec=next(count)))

    def write():
        for _ in range(200):
            change()
            time.sleep(0.002 * (chance.random() < 0.5))
        api.put(JOBS, job("last"))

    for _ in range(5):
        change()
    before, api.fault = len(api.history), fault
    thread, stop, seen = threading.Thread(target=write), threading.Event(), []
    for kind, thing in watch(connection, JOBS, patience=soon(60, stop=stop)):
        seen.append((kind, thing))
        if kind == SYNCED:
            thread.start()
        elif thing["metadata"]["name"] == "last":
            break
    thread.join()
    model, newest = {}, {}
    for kind, thing in ((kind, thing) for kind, thing in seen if kind != SYNCED):
        uid, number = thing["metadata"]["uid"], int(thing["metadata"]["resourceVersion"])
        assert (uid in model) == (kind != ADDED), kind
        if kind == DELETED:
            model.pop(uid)
        else:
            assert number > newest.get(uid, 0), "told twice, or out of order"
            newest[uid], model[uid] = number, thing
    assert {t["metadata"]["uid"]: t for t in api.collections[JOBS].values()} == model
    told = [(kind, thing["metadata"]["resourceVersion"]) for kind, thing in seen if kind != SYNCED]
    first = [kind for kind, _ in seen].index(SYNCED)
    assert told[first:] == [(kind, str(number)) for number, _, kind, _ in api.history[before:]]
    assert len(broken) >= 100, "the faults did not happen"


GARBLED = (
    b"<html>Bad Gateway</html>",
    b'{"type": "MODIFIED", "object": {"metadata": {"name": "a"}}}',
    b'{"type": {}, "object": {"metadata": {"uid": "u", "resourceVersion": "1"}}}',
)


@pytest.mark.parametrize("line", GARBLED)
def test_what_is_no_change_of_an_object_costs_nothing(api, connection, line):
    api.put(JOBS, job("a"))
    faults = {"list": [{"garbled": line}], "watch": [{"garbled": line}]}

    def fault(path, query):
        left = faults["watch" if "watch" in query else "list"]
        return left.pop() if left else None

    api.fault = fault
    said = []
    seen = []
    for change in watch(connection, JOBS, patience=soon(say=said.append)):
        seen.append(change)
        if change[0] == SYNCED:
            api.put(JOBS, job("b"))
        if len(seen) == 3:
            break
    assert tell(seen) == [(ADDED, "a"), (SYNCED, ""), (ADDED, "b")] and faults == {"list": [], "watch": []}
    assert len(said) == 1

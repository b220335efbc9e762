"""`delayserver consume` with real commands: what they get, what their exit codes do, bounds, and a clean end by signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from delayserver.cli.groups.consumer_work import _without_secrets, property_fields, variables
from delayserver.client import Client
from tests.delayserver.cli.conftest import COMMAND_SECONDS_MAX, Done, Server
from tests.delayserver.client.listening.deliveries import delivery
from tests.delayserver.client.listening.listeners import until

Begin = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.address) as client:
        yield client


def send(client: Client, subject: str, *bodies: bytes, **options: object) -> None:
    for body in bodies:
        client.send(subject, body, delay_ms=0, **options)  # type: ignore[arg-type]


def lag(client: Client, subject: str) -> int:
    return sum(group.lag for group in client.groups(subject))


def ended(process: subprocess.Popen[bytes]) -> Done:
    out, err = process.communicate(timeout=COMMAND_SECONDS_MAX)
    return Done(process.returncode, out.decode(), err.decode())


def test_without_a_command_messages_are_printed_and_acked(server: Server, client: Client, subject: str) -> None:
    send(client, subject, b"one", b"two")
    done = server.run("consume", subject, "--group", "g", "--max", "2")
    assert (done.code, done.err) == (0, "")
    assert "one" in done.out and "two" in done.out
    assert lag(client, subject) == 0
    send(client, subject, b"three")
    row = server.run("consume", subject, "--group", "g", "--max", "1", "--json").row
    assert (row["body"], row["subject"], row["attempt"]) == ("three", subject, 1)


def test_a_command_does_not_get_the_token_of_its_consumer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token = "dst_0123456789ab_" + "A" * 43
    (tmp_path / "token").write_text(token)
    monkeypatch.setenv("DELAYSERVER_TOKEN", token)
    monkeypatch.setenv("DELAYSERVER_TOKEN_FILE", str(tmp_path / "token"))
    monkeypatch.setenv("KEPT", "yes")
    assert _without_secrets(os.environ).keys() == os.environ.keys() - {"DELAYSERVER_TOKEN", "DELAYSERVER_TOKEN_FILE"}
    assert _without_secrets(os.environ)["KEPT"] == "yes"


def test_a_command_gets_the_body_on_stdin_and_the_rest_in_variables(
    server: Server, client: Client, subject: str, tmp_path: Path
) -> None:
    properties = {"customer-id": "7 & 8; $(touch hacked)", "läuft": "ja"}
    client.send(subject, b"\x00body\n", delay_ms=0, message_id="it's $HOME", properties=properties)
    command = f"cat > {tmp_path}/body; env | grep ^DELAYSERVER_ > {tmp_path}/env"
    done = server.run("consume", subject, "--group", "g", "--max", "1", "--exec", command)
    assert (done.code, done.out, done.err) == (0, "", "")
    assert (tmp_path / "body").read_bytes() == b"\x00body\n"
    found = dict(line.split("=", 1) for line in (tmp_path / "env").read_text().splitlines())
    assert found["DELAYSERVER_MESSAGE_ID"] == "it's $HOME"
    assert found["DELAYSERVER_SUBJECT"] == subject and found["DELAYSERVER_GROUP"] == "g"
    assert found["DELAYSERVER_ATTEMPT"] == "1" and int(found["DELAYSERVER_DUE_MS"]) > 0
    assert found["DELAYSERVER_SERVER_ID"] == server.server_id and int(found["DELAYSERVER_SEQUENCE"]) > 0
    assert found["DELAYSERVER_PROPERTY_CUSTOMER_ID"] == "7 & 8; $(touch hacked)"
    assert json.loads(found["DELAYSERVER_PROPERTIES"]) == properties
    assert lag(client, subject) == 0


def test_variables_can_hold_every_message() -> None:
    fields = property_fields({"a b": "1", "A-B": "2", "ÄÖ": "3", "": "4"})
    assert fields == {"PROPERTY_A_B": "1", "PROPERTY___": "3", "PROPERTY_": "4"}
    made = variables("g", delivery(1, message_id="with\0null"))
    assert made["DELAYSERVER_MESSAGE_ID"] == "with\ufffdnull"
    assert "\0" not in "".join([*made, *made.values()])


def test_another_exit_code_nacks_and_the_message_comes_again(
    server: Server, client: Client, subject: str, tmp_path: Path
) -> None:
    send(client, subject, b"7", message_id="order-7")
    command = f"echo $DELAYSERVER_ATTEMPT >> {tmp_path}/attempts; exit $((DELAYSERVER_ATTEMPT == 1 ? 3 : 0))"
    done = server.run("consume", subject, "--group", "g", "--max", "2", "--exec", command)
    assert done.code == 0
    assert done.err == "order-7: exit code 3, attempt 1, comes again\n"
    assert (tmp_path / "attempts").read_text() == "1\n2\n"
    assert lag(client, subject) == 0


def test_a_command_that_takes_too_long_is_ended_with_all_that_it_started(
    server: Server, client: Client, subject: str, tmp_path: Path
) -> None:
    send(client, subject, b"7", message_id="order-7")
    command = f"sleep 1000 & echo $! > {tmp_path}/pid; wait"
    # A machine that stands still may use up the time before the shell has begun. Then the next attempt has more.
    for attempt, timeout in enumerate(("300ms", "3s", "30s"), 1):
        options = ("--group", "g", "--max", "1", "--timeout", timeout, "--exec", command)
        done = server.run("consume", subject, *options)
        assert done.code == 0
        assert done.err == f"order-7: ended by --timeout, attempt {attempt}, comes again\n"
        if (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip():
            break
    inner = int((tmp_path / "pid").read_text())
    until(lambda: not is_running(inner), "the end of what the command started")


def is_running(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_command_that_does_not_exist_ends_consume_and_uses_up_no_other_message(
    server: Server, client: Client, subject: str
) -> None:
    send(client, subject, b"1", b"2", b"3")
    done = server.run("consume", subject, "--group", "g", "--exec", "no-such-command-here")
    assert done.code == 1
    assert "the command was not found (exit code 127): no-such-command-here" in done.err
    assert "Traceback" not in done.err
    again = [each for _ in range(3) for each in client.pull(subject, "g", 1, 10.0)]
    assert {each.body for each in again} == {b"1", b"2", b"3"}


def test_json_prints_a_line_a_message_and_the_output_of_commands_goes_elsewhere(
    server: Server, client: Client, subject: str
) -> None:
    send(client, subject, b"good", b"bad")
    command = 'read body; echo "said $body"; test "$body" = good'
    done = server.run("consume", subject, "--group", "g", "--max", "2", "--json", "--exec", command)
    assert done.code == 0
    assert {row["body"]: (row["exit_code"], row["timed_out"]) for row in done.rows} == {
        "good": (0, False),
        "bad": (1, False),
    }
    assert "said good" in done.err and "said bad" in done.err


def test_consume_runs_as_many_commands_at_once_as_concurrency_says(
    server: Server, client: Client, subject: str, tmp_path: Path
) -> None:
    send(client, subject, *[b"%d" % number for number in range(6)])
    # Each waits until three have begun, so with fewer at once this would hang.
    command = f"touch {tmp_path}/$DELAYSERVER_SEQUENCE; while [ $(ls {tmp_path} | wc -l) -lt 3 ]; do sleep 0.02; done"
    options = ("--max", "3", "--concurrency", "3", "--timeout", "50s", "--exec", command)
    done = server.run("consume", subject, "--group", "g", *options)
    assert (done.code, done.err) == (0, "")
    assert len(list(tmp_path.iterdir())) == 3, "--max counts what began"
    until(lambda: lag(client, subject) == 3)


def test_a_filter_chooses_messages(server: Server, client: Client, subject: str) -> None:
    send(client, subject, b"1", tag="open", properties={"price": "9"})
    send(client, subject, b"2", tag="paid", properties={"price": "1"})
    send(client, subject, b"3", tag="paid", properties={"price": "9"})
    options = ("--tags", "paid", "--where", "price > 5", "--max", "1", "--json")
    assert server.run("consume", subject, "--group", "g", *options).row["body"] == "3"
    wrong = server.run("consume", subject, "--group", "h", "--where", "price >")
    assert wrong.code == 1 and "filter_invalid" in wrong.err and "Traceback" not in wrong.err


def test_a_pattern_finds_new_subjects(server: Server, client: Client, subject: str, begin: Begin) -> None:
    send(client, f"{subject}.a", b"1")
    running = begin("consume", f"{subject}.*", "--group", "g", "--max", "2", "--json", "--server", server.address)
    assert running.stdout is not None
    assert json.loads(running.stdout.readline())["subject"] == f"{subject}.a"
    send(client, f"{subject}.b", b"2")
    done = ended(running)
    assert (done.code, done.row["subject"]) == (0, f"{subject}.b")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_running_commands_end(
    server: Server, client: Client, subject: str, begin: Begin, tmp_path: Path, number: signal.Signals
) -> None:
    send(client, subject, b"1", b"2")
    command = f"touch {tmp_path}/begun; while ! [ -e {tmp_path}/go ]; do sleep 0.02; done; touch {tmp_path}/done"
    running = begin("consume", subject, "--group", "g", "--exec", command, "--server", server.address)
    until((tmp_path / "begun").exists)
    running.send_signal(number)
    # The other message is given back while the command still runs.
    (other,) = client.pull(subject, "g", 1, 30.0)
    (tmp_path / "go").touch()
    done = ended(running)
    assert (done.code, done.err) == (0, "stopping; 1 still run; a second signal ends them\n")
    assert (tmp_path / "done").exists()
    client.ack(subject, "g", [other])
    assert lag(client, subject) == 0


def test_a_second_signal_ends_running_commands(
    server: Server, client: Client, subject: str, begin: Begin, tmp_path: Path
) -> None:
    send(client, subject, b"1")
    command = f"echo $$ > {tmp_path}/pid; sleep 1000"
    running = begin("consume", subject, "--group", "g", "--exec", command, "--server", server.address)
    until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip())
    running.send_signal(signal.SIGINT)
    assert running.stderr is not None
    assert running.stderr.readline() == b"stopping; 1 still run; a second signal ends them\n"
    running.send_signal(signal.SIGTERM)
    assert ended(running).code == 0
    assert not is_running(int((tmp_path / "pid").read_text()))
    (again,) = client.pull(subject, "g", 1, 30.0)
    assert again.attempt == 2


def test_a_closed_output_ends_consume_and_acks_nothing_more(
    server: Server, client: Client, subject: str, begin: Begin
) -> None:
    send(client, subject, b"first")
    running = begin("consume", subject, "--group", "g", "--json", "--server", server.address)
    assert running.stdout is not None
    running.stdout.readline()
    running.stdout.close()
    send(client, subject, b"lost")
    assert running.wait(COMMAND_SECONDS_MAX) == 1
    (again,) = client.pull(subject, "g", 1, 30.0)
    assert again.body == b"lost"


@pytest.mark.parametrize("how", ["closed output", "no command"])
def test_messages_that_consume_has_not_begun_at_its_failure_use_up_no_attempt(
    server: Server, client: Client, subject: str, begin: Begin, how: str
) -> None:
    command = ("--exec", "/no/such/command") if how == "no command" else ()
    client.set_policy(subject, "g", attempts=1)
    client.pull(subject, "g", 1)
    now_ms = client.ping() // 1000
    client.send_columns(subject, now_ms, [b"%d" % number for number in range(500)])
    until(lambda: lag(client, subject) == 500)
    read, write = os.pipe()
    os.close(read)
    running = begin("consume", subject, "--group", "g", *command, "--server", server.address, stdout=write)
    os.close(write)
    assert running.wait(COMMAND_SECONDS_MAX) == 1
    assert len(client.dead_letters(subject, "g")) <= 1, "the one that met the failure"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "--group"),
        (("--group", "g", "--timeout", "1s"), "--exec"),
        (("--group", "g", "--exec", "true", "--timeout", "0s"), "--timeout"),
        (("--group", "g", "--max", "0"), "--max"),
        (("--group", "g", "--concurrency", "0"), "--concurrency"),
        (("--group", "g", "--ack-timeout", "0s"), "--ack-timeout"),
    ],
)
def test_wrong_options_are_named(server: Server, options: tuple[str, ...], said: str) -> None:
    done = server.run("consume", "s", *options)
    assert done.code == 2 and said in done.err


def test_consume_says_at_once_that_no_server_is_there(delayserver: Callable[..., Done]) -> None:
    done = delayserver("consume", "s", "--group", "g", "--server", "127.0.0.1:1")
    assert done.code == 1 and "no server answers: cannot connect to 127.0.0.1:1" in done.err


def test_consume_refuses_an_invalid_group(server: Server) -> None:
    done = server.run("consume", "s", "--group", "a\nb")
    assert done.code == 1 and "subject_invalid" in done.err and "Traceback" not in done.err
    assert os.linesep in done.err

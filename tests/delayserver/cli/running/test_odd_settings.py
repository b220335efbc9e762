"""Every setting with odd values: `config check` and `serve` end in a sentence with its name, or the server starts."""

from __future__ import annotations

import resource
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st

from delayserver.cli import cli
from delayserver.cli.terminal import options
from delayserver.config.checking import find_problems
from delayserver.config.toml_file import ConfigError, keys_of, load_settings
from tests.forked import without_stalls

ODD_TEXTS = (
    '""', '" "', r'"\u0000"', r'"a\nb"', '"é٣"', '"/"', '"/nonexistent/x"', '"/dev/null"', '"."', '"nohost.invalid"',
    '"256.1.1.1"', f'"{"a" * 300}"', '"10.0.0.0/8"', '"[::1"', '"h:99999999"', f'"h:{"1" * 200}"', '"1d"', '"-1s"', '"1e3"',
    f'"{"1" * 400}d"', f'"{"1" * 400}GiB"', '"99999999999d"', '"9223372036854775807B"', '"16GiB"',
)  # fmt: skip
ODD_NUMBERS = (
    "0", "1", "-1", "2", "7", str(2**31 - 1), str(2**31), str(2**32 - 1), str(2**32), str(2**63 - 1), str(2**63), "1" * 400,
    "1" * 5000, f"0x{'f' * 5000}", "1.5", "nan", "inf",
)  # fmt: skip
ODD_REST = (
    "true", "false", "[]", "{}", "1979-05-27", "[1]", "[[1]]", "[{}]", '[""]', '["x"]', '["::1"]', '["a:1", "a:1"]',
    "[" * 30 + "]" * 30, "[" * 3000 + "]" * 3000, "{a = " * 100 + "1" + "}" * 100, "no TOML", "1\nx = 2",
)  # fmt: skip
ODD = ODD_TEXTS + ODD_NUMBERS + ODD_REST
LENGTH_MAX = 1000
"""Of a sentence. It has all sections, or all settings of one, where a name is unknown."""
MEMORY_BYTES_MAX = 8 << 30
"""A size that a machine does not have must not take the machine of the tests."""


def document(key: str, value: str) -> str:
    """A file with one setting."""
    section, _, name = key.rpartition(".")
    if section == "groups.nodes":
        return f'[[groups]]\nname = "default"\n[[groups.nodes]]\n{name} = {value}\n'
    if section in ("groups", "routes"):
        return f"[[{section}]]\n{name} = {value}\n"
    return f"[{section}]\n{name} = {value}\n" if section else f"{name} = {value}\n"


def refusal(path: Path, text: str) -> str | None:
    """The sentence with which the settings of a file are refused; `config check` says it too."""
    # A file system may write what replaces a text at once, which takes milliseconds.
    path.unlink(missing_ok=True)
    path.write_text(text)
    problems = find_problems(str(path), ())
    try:
        load_settings(str(path))
    except ConfigError as error:
        assert problems
        return str(error)
    assert not problems
    return None


def names(said: str, key: str) -> bool:
    """Whether a sentence has the setting; of a file that cannot be parsed no setting is known."""
    return key in said or "is not TOML" in said or (key.startswith("groups") and "groups" in said)


@pytest.mark.parametrize("key", keys_of())
def test_an_odd_value_in_a_file_is_taken_or_refused_in_a_sentence_with_its_name(tmp_path: Path, key: str) -> None:
    for value in ODD:
        said = refusal(tmp_path / "odd.toml", document(key, value))
        assert said is None or names(said, key), (key, value[:64], said)
        assert said is None or len(said) < LENGTH_MAX


@pytest.mark.parametrize("key", [key for key in keys_of() if key.partition(".")[0] not in ("groups", "routes")])
def test_an_odd_value_on_the_command_line_is_taken_or_refused_in_a_sentence_with_its_name(key: str) -> None:
    for value in ODD:
        problems = find_problems(None, [f"{key}={value}"])
        assert len(problems) <= 1
        assert all(names(problem.text, key) and len(problem.text) < LENGTH_MAX for problem in problems), (
            key,
            value[:64],
        )


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=9,
)


@given(st.dictionaries(st.sampled_from(keys_of()), VALUES, min_size=1, max_size=4))
def test_settings_of_any_types_together_are_taken_or_refused(given_values: dict[str, Any]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "delayserver.config.toml_file.with_secret", lambda settings: settings
        )  # any path may be read there
        try:
            load_settings(None, given_values)
        except ConfigError as error:
            assert str(error)


@given(st.text(max_size=60) | st.binary(max_size=60).map(lambda raw: raw.decode("utf-8", "surrogateescape")))
def test_any_assignment_is_taken_or_a_problem(text: str) -> None:
    find_problems(None, [text, f"listen.port={text}", f"tls.http={text}", f"groups={text}"])


def start_or_refuse(
    begin: Callable[..., subprocess.Popen[bytes]], place: Path, given_values: dict[str, str]
) -> str | None:
    """None if a server starts and ends cleanly; else the sentence with which it ends."""
    sections: dict[str, list[str]] = {}
    free = {"listen.port": "0", "http.port": "0", "storage.data_dir": f'"{place}"'}
    for key, value in (free | given_values).items():
        section, _, name = key.rpartition(".")
        sections.setdefault(section, []).append(f"{name} = {value}")
    text = "\n".join(
        [line for section in sorted(sections) for line in ([f"[{section}]"] if section else []) + sections[section]]
    )
    path = place.with_suffix(".toml")
    path.write_text(text + "\n")
    process = begin("serve", "--config", str(path))
    assert process.stdout is not None
    resource.prlimit(process.pid, resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    line = process.stdout.readline().decode()
    if line:
        process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=120)
    said = err.decode()
    assert "Traceback" not in said, (given_values, said)
    if line:
        assert (process.returncode, out) == (0, b""), (given_values, said)
        return None
    assert process.returncode in (1, 2), (given_values, said)
    *_, last = without_stalls(said).splitlines()
    assert last.startswith("Error: "), (given_values, said)
    return last


BOUNDS = {
    "storage.open_files_max": ("9", "8"),
    "wheel.slots": (str(1 << 20), str((1 << 20) + 1)),
    "wheel.load_ahead_ms": ('"1d"', '"1d1ms"'),
}
"""The last value that a server can serve with, and the next one."""


def test_a_server_starts_with_every_bound_and_refuses_what_lies_beyond(
    begin: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    within = {key: value for key, (value, _) in BOUNDS.items()}
    assert start_or_refuse(begin, tmp_path / "data", within) is None
    for key, (_, beyond) in BOUNDS.items():
        said = start_or_refuse(begin, tmp_path / "beyond", within | {key: beyond})
        assert said is not None and key in said


@pytest.mark.parametrize(
    "key", ["storage.data_dir", "log.audit_file", "tls.certificate", "tls.node_ca", "listen.server_secret_file"]
)
def test_a_path_that_cannot_be_used_is_a_sentence(
    begin: Callable[..., subprocess.Popen[bytes]], tmp_path: Path, key: str
) -> None:
    (tmp_path / "file").write_text("no certificate")
    (tmp_path / "folder" / "inner").mkdir(parents=True)
    for number, path in enumerate(
        (tmp_path / "file" / "below", "/proc/none", "/dev/full", "/" + "a" * 300, tmp_path / "folder")
    ):
        given_values = {key: f'"{path}"'} | ({"tls.key": f'"{tmp_path / "file"}"'} if key == "tls.certificate" else {})
        said = start_or_refuse(begin, tmp_path / f"data{number}", given_values)
        if (key, path) != ("log.audit_file", "/dev/full"):  # it can be opened
            assert said is not None, given_values
            assert key in said or str(path) in said


def test_a_key_with_a_passphrase_is_refused_and_not_asked_for(
    begin: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    made = trustme.CA().issue_cert("localhost")
    made.cert_chain_pems[0].write_to_path(tmp_path / "certificate.pem")
    plain, locked = tmp_path / "key.pem", tmp_path / "locked.pem"
    made.private_key_pem.write_to_path(plain)
    subprocess.run(
        ["openssl", "pkey", "-in", plain, "-out", locked, "-aes256", "-passout", "pass:open"],
        check=True,
        capture_output=True,
    )
    given_values = {"tls.certificate": f'"{tmp_path / "certificate.pem"}"', "tls.key": f'"{locked}"'}
    said = start_or_refuse(begin, tmp_path / "data", given_values)
    assert said is not None and "tls.key" in said and "the key has a passphrase" in said
    assert start_or_refuse(begin, tmp_path / "data", given_values | {"tls.key": f'"{plain}"'}) is None


def test_ports_and_hosts_that_cannot_be_used_are_named(
    begin: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for section in ("listen", "http"):
            said = start_or_refuse(begin, tmp_path / section, {f"{section}.port": port})
            assert said is not None and f"{section}.port" in said and "another process" in said
    same = start_or_refuse(begin, tmp_path / "same", {"listen.port": port, "http.port": port})
    assert same is not None and "http.port" in same and "listen.port" in same
    for key, value in (
        ("listen.host", '"nohost.invalid"'),
        ("listen.hosts", '["::1", "a b"]'),
        ("http.host", '"256.1.1.1"'),
    ):
        said = start_or_refuse(begin, tmp_path / "host", {"http.port": port, key: value})
        assert said is not None and key.removesuffix("s") in said


@pytest.mark.parametrize("command", [("config", "check"), ("config", "show")])
def test_a_secret_on_the_command_line_is_warned_of(
    delayserver: Callable[..., Any], tmp_path: Path, command: tuple[str, str]
) -> None:
    done = delayserver(*command, "--set", "listen.server_secret=sixteen or more characters")
    (warning,) = done.err.splitlines()
    assert warning.startswith("Warning: ") and "listen.server_secret_file" in warning
    assert "sixteen or more" not in done.err + done.out
    (tmp_path / "secret").write_text("sixteen or more characters\n")
    done = delayserver(*command, "--set", f"listen.server_secret_file={tmp_path / 'secret'}")
    assert (done.code, done.err) == (0, "")


def commands(group: click.Group = cli) -> Iterator[tuple[str, click.Command]]:
    """Every command, those of groups too."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield name, command
        if isinstance(command, click.Group):
            yield from commands(command)


def test_every_option_with_a_secret_takes_a_file_or_has_a_variable() -> None:
    """The one option that may carry a secret is `--set`, which warns."""
    words = ("secret", "token", "password", "passphrase", "credential")
    found = {
        (name, option.name)
        for name, command in commands()
        for option in command.params
        if isinstance(option, click.Option) and any(word in text for text in option.opts for word in words)
    }
    assert {option for _, option in found} == {"token_file"}
    setters = [option for _, command in commands() for option in command.params if "--set" in option.opts]
    assert len(setters) >= 4
    assert all(option.callback is options.warn_of_secrets for option in setters)

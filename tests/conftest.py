"""What all tests share: the markers `spark` and `kafka`, the node of Kafka, and what runs first.

Without Java the tests of Spark and of Kafka are visibly skipped; in CI (CI=true) they fail.
"""

from __future__ import annotations

import functools
import gc
import importlib.util
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from ops.kafka.nodes import KafkaNodes

# A busy machine is no fault of a test. Examples and their order stay those of the profile that Hypothesis chose.
settings.register_profile("unhurried", settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")

# A shell that starts the tests in the background has them ignore interrupts, and so would all that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Every Java that tests start compiles quickly rather than well: none runs for long.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

AUDIT = Path(__file__).parent / "ops" / "audit"
# Its tests keep a processor busy for minutes. They share nothing, and each takes seconds.
BUSY = Path(__file__).parent / "simulation"
# Files whose tests share a Spark session.
ONE_SESSION = {
    f"tests/ops/audit/test_{name}.py" for name in ("audit_of_a_server", "findings", "sink", "sources", "topics")
}
# Their tests share one node of Kafka.
ONE_NODE = (
    "tests/ops/kafka/",
    "tests/ops/bench/test_to_kafka.py",
    "tests/delayserver/kafka/",
    "tests/delayserver/targets/test_kafka_topics.py",
    "tests/ops/torture/test_takeovers.py",
)
THREE_NODES = "tests/delayserver/kafka/test_three_nodes.py"
# Modules that fork processes by the one forkserver of a test process.
FORKING = ("ops.bench.children", "tests.crash.process", "tests.ops.examples.shop")
JAVA_MIN = 17


@functools.cache
def missing_java() -> str | None:
    """What is wrong with the Java of this machine, as a sentence, or None."""
    java = shutil.which("java")
    if java is None:
        return f"Java is not installed: install Java {JAVA_MIN} or newer"
    words = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(\d+)', words)
    if version is None or int(version[1]) < JAVA_MIN:
        return f"Java {JAVA_MIN} or newer is needed, {java} is {version[1] if version else 'of an unknown version'}"
    return None


def missing_for_spark() -> str | None:
    """What a Spark test lacks on this machine, as a sentence, or None."""
    if importlib.util.find_spec("pyspark") is None:
        return "pyspark is not installed: pip install --use-pep517 '.[audit]'"
    return missing_java()


@functools.cache
def missing_for_kafka() -> str | None:
    """What a Kafka test lacks on this machine, as a sentence, or None. Fetches Kafka where it can."""
    from ops.kafka.jars import JarsMissing, fetch

    if importlib.util.find_spec("confluent_kafka") is None:
        return "confluent-kafka is not installed: pip install --use-pep517 '.[kafka]'"
    try:
        fetch()
    except JarsMissing as error:
        return str(error)
    return missing_java()


MISSING: Final[dict[str, Callable[[], str | None]]] = {"spark": missing_for_spark, "kafka": missing_for_kafka}


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip or fail what cannot run here."""
    for marker, look in MISSING.items():
        missing = look() if item.get_closest_marker(marker) else None
        if missing is not None:
            if os.environ.get("CI", "").lower() in ("1", "true", "yes"):
                pytest.fail(f"the tests of {marker} must run in CI: {missing}", pytrace=False)
            pytest.skip(missing)


PASSWORDS = {
    "listener.name.sasl.sasl.enabled.mechanisms": "PLAIN",
    "listener.name.sasl.plain.sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required "
    'user_delay="right";',
}
"""Settings of a node: the listener SASL knows the user `delay` with the password `right`."""


@pytest.fixture(scope="session")
def one_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaNodes]:
    """A node of Kafka that lives as long as the tests of its process. For tests that leave it as it is. Two ports further on
    it asks for a password, and behind that are the `ways_of` members."""
    from ops.kafka.nodes import KafkaNodes, Way
    from ops.torture.cluster import KAFKA_PORTS, ways_of
    from tests.ports import free_port

    port = free_port(1 + KAFKA_PORTS)
    ways = [Way("SASL", port + 2, security="SASL_PLAINTEXT"), *ways_of(port + 3)]
    nodes = KafkaNodes(tmp_path_factory.mktemp("kafka"), 1, port, settings=PASSWORDS, ways=ways)
    try:
        nodes.start()
        yield nodes
    finally:
        nodes.wipe()


@pytest.fixture
def kafka(one_node: KafkaNodes) -> Iterator[KafkaNodes]:
    """The same node, for tests that may kill or pause it. After the test it serves again."""
    yield one_node
    one_node.start()


def pytest_xdist_auto_num_workers() -> int:
    """Twice as many workers as processors: most tests wait for clocks, disks and other processes for most of their time."""
    return 2 * (os.cpu_count() or 1)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Whole files for each worker, but for those that share a session, and those that would keep a worker busy when the
    others have ended."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            if file in ONE_SESSION:
                return "one session"
            if file.startswith(ONE_NODE) and file != THREE_NODES:
                return "one node"
            return nodeid if file.startswith("tests/simulation/") else file

    return Scheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that start Spark come first: they take longest, and the short ones then fill up all processes to the end.

    Those that keep a processor busy are spread among the others, which mostly wait: so both are used all the time.
    """
    files = {path: number for number, path in enumerate(dict.fromkeys(item.path for item in items))}
    busy = [item for item in items if BUSY in item.path.parents]
    places = {id(item): number / len(busy) for number, item in enumerate(busy)}

    def place(item: pytest.Item) -> tuple[bool, float]:
        return AUDIT not in item.path.parents, places.get(id(item), files[item.path] / len(files))

    items.sort(key=place)


def pytest_collection_finish() -> None:
    """Modules and tests stay to the end: the collector need not go through them again and again. And the process from which
    servers and clients are forked imports what both need. Without this it has the modules of one, and each of the others
    takes a second of a processor to start."""
    preloaded = [name for module in FORKING if module in sys.modules for name in sys.modules[module].PRELOADED]
    multiprocessing.get_context("forkserver").set_forkserver_preload(preloaded)
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)

"""On a cluster: executors have nothing of ours but the archive that README says to ship."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ops.audit.needs_spark import require_pyspark

pytestmark = pytest.mark.spark
require_pyspark()

import pyspark  # noqa: E402 - behind the check that Spark is there

from ops.audit.bench_data import write_directory  # noqa: E402
from store.disk.filesystem import RealFileSystem  # noqa: E402

ROOT = Path(__file__).parents[3]
ROWS = 3000
QUIET = ("ui.enabled=false", "driver.host=127.0.0.1", "driver.bindAddress=127.0.0.1")
# For a few thousand rows: two partitions instead of two hundred, and compilers that do not wait for millions of rows.
QUICK = (
    "sql.shuffle.partitions=2",
    "sql.codegen.wholeStage=false",
    "driver.extraJavaOptions=-XX:TieredStopAtLevel=1",
    "executor.extraJavaOptions=-XX:TieredStopAtLevel=1",
)
JOB = """
import json, sys
from ops.audit.audit import Audit
from ops.audit.latency import LatencyQuestion
from ops.audit.log_frames import Range
from ops.audit.session import start_session
from store.disk.filesystem import RealFileSystem

def where(_rows):
    import ops.audit.part_reader
    yield ops.audit.part_reader.__file__

spark = start_session()
(file,) = spark.sparkContext.parallelize([1], 1).mapPartitions(where).collect()
audit = Audit(lambda: spark, RealFileSystem(), (sys.argv[1],), lambda line: None)
found = audit.latency(LatencyQuestion(Range()), lambda report: report.to_map())
print("FOUND", json.dumps([spark.sparkContext.master, file, found["outcomes"]]))
"""


def test_executors_read_with_the_code_of_py_files(tmp_path: Path) -> None:
    packages = tmp_path / "packages"
    for name in ("delayserver", "store", "wheel", "ops"):
        shutil.copytree(ROOT / name, packages / name, ignore=shutil.ignore_patterns("__pycache__"))
    archive = shutil.make_archive(str(tmp_path / "delayserver"), "zip", packages)
    shutil.rmtree(packages)
    data = write_directory(RealFileSystem(), str(tmp_path / "data"), ROWS, bodies=False)
    job = tmp_path / "job.py"
    job.write_text(JOB)
    home = Path(pyspark.__file__).parent
    master = "local-cluster[1,1,1024]"
    command = [str(home / "bin" / "spark-submit"), "--master", master, "--py-files", archive]
    for setting in (*QUIET, *QUICK):
        command += ["--conf", f"spark.{setting}"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    # Executors of a local cluster keep their copies of the archive and their logs there.
    environment["SPARK_WORKER_DIR"] = str(tmp_path / "work")
    done = subprocess.run(
        [*command, str(job), data.path], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    line = next((line for line in done.stdout.splitlines() if line.startswith("FOUND ")), None)
    assert line is not None, done.stdout + done.stderr
    found, file, outcomes = json.loads(line.removeprefix("FOUND "))
    assert found == master
    assert file.startswith("./delayserver.zip/"), "the executor's own copy"
    assert sum(outcomes.values()) == ROWS

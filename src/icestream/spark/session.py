"""Starts the Spark session: one per process, silent, on loopback if the master is local."""

import logging
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import ensure_callback_server_started, launch_gateway
from pyspark.sql import SparkSession

from icestream.errors import SetupError
from icestream.spark import ended, jars
from icestream.spark.java import find_java

# Spark hides the values of settings with such names in its UI and logs.
_SECRET = "(?i)secret|password|token|credential|jaas|sasl|auth|access[._-]key|api[._-]?key"
# Only these are needed to start the JVM; the rest stays off its command line, where `ps` shows it.
_AT_LAUNCH = re.compile(r"spark\.(master|driver\.|local\.dir|jars$|submit\.)")

_SETTINGS = {
    "spark.master": "local[*,3]",  # a task whose Python worker dies is tried again
    "spark.driver.memory": ended.MEMORY,
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Spark keeps jobs for its UI, which is off: up to 1,000 plans, in memory for hours.
    "spark.ui.retainedJobs": "10",
    "spark.ui.retainedStages": "10",
    "spark.ui.retainedTasks": "1000",
    "spark.sql.ui.retainedExecutions": "5",
    "spark.ui.liveUpdate.period": "-1",
    "spark.redaction.regex": _SECRET,
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    "spark.sql.execution.pyspark.udf.faulthandler.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",  # as `plan.memory` assumes
    "spark.python.worker.reuse": "true",
    "spark.python.daemon.module": "icestream.batch.daemon",
    "spark.sql.streaming.minBatchesToRetain": "2",
    "spark.sql.streaming.numRecentProgressUpdates": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.streaming.stopTimeout": "60s",
    # The default one starts a `readlink` process for each file that it renames: 16 a batch.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.kafka.consumer.cache.capacity": "2000",  # by default 64: consumers of others start anew
    # Consumers of a query that ended are of no use, and at 1,000 partitions 0.7 MB each. By default
    # Spark checks ten of them a minute: after a restart, twice the heap for more than an hour.
    "spark.kafka.consumer.cache.timeout": "2m",
    "spark.kafka.consumer.cache.evictorThreadRunInterval": "1s",
    "spark.kafka.consumer.fetchedData.cache.timeout": "2m",
}

_DRIVER_JAVA, _EXECUTOR_JAVA = "spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions"
_COLLECTOR = re.compile(r"-XX:\+Use\w+GC")
# Java's optimizing compiler takes code that was called some thousand times by default, as most of
# Spark is after a while: at first as much CPU as a third of the pipeline's. Code that handles
# records is called millions of times, so the compiler may wait for ten times as many calls.
_COMPILER = (
    "-XX:Tier4InvocationThreshold=50000",
    "-XX:Tier4MinInvocationThreshold=6000",
    "-XX:Tier4CompileThreshold=150000",
    "-XX:Tier4BackEdgeThreshold=400000",
    # By default loading Spark's classes causes four full collections, of a heap still empty.
    "-XX:MetaspaceSize=192m",
)

_LOGGING = """\
status = error
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = {file}
appender.file.filePattern = {file}.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{yyyy-MM-dd HH:mm:ss.SSS}} %p %c{{1}}: %m%n%ex
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = 20MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 3
"""


def start(
    name: str,
    state: Path,
    settings: Mapping[str, str],
    sets: Sequence[str] = (),
    java_options: Sequence[str] = (),
    progress: Callable[..., Any] | None = None,
) -> SparkSession:
    """Start the session; what Spark and its workers print goes to `<state>/logs/`."""
    logs, scratch = state / "logs", state / "spark"
    for folder in (logs, scratch):
        folder.mkdir(parents=True, exist_ok=True)
    _keep_quiet(logs)
    jar_files = [str(path) for path in jars.ensure([*jars.CORE, *sets], progress=progress)]
    conf = _settings(name, logs, scratch, settings, jar_files, java_options)
    os.environ["JAVA_HOME"] = str(find_java().home)
    if conf["spark.master"].startswith("local"):
        # Workers on this machine need what is installed here, whatever the shell says.
        os.environ["PYSPARK_PYTHON"] = conf.get("spark.pyspark.python", sys.executable)
    os.environ["SPARK_LOCAL_DIRS"] = str(scratch)
    ended.scratch = scratch.absolute()
    gateway = SparkContext._gateway or _launch(conf, logs)
    context = SparkContext(
        gateway=gateway, conf=SparkConf(_jvm=gateway.jvm).setAll(list(conf.items()))
    )
    # Java tells Python which of our objects it no longer holds: each commit hands it one. Without
    # our own callback server it would do so at py4j's default port, whoever listens there.
    ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
    _without_checksum_files(context)
    return SparkSession(context)


def _without_checksum_files(context: SparkContext) -> None:
    """Write no `.crc` beside each local file: twice the files, and a `chmod` process for each."""
    jvm: Any = context._jvm
    settings = context._jsc.hadoopConfiguration()
    jvm.org.apache.hadoop.fs.FileSystem.getLocal(settings).setWriteChecksum(False)


def _keep_quiet(logs: Path) -> None:
    """Let PySpark and py4j log to a file: errors are shown once, in icestream's own words."""
    handler = logging.FileHandler(logs / "pyspark.log", delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    for name in ("py4j", "pyspark", "SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False


def _launch(conf: Mapping[str, str], logs: Path) -> Any:
    """Start the JVM in a session of its own: Ctrl-C is ours; it ends when our pipe closes."""
    launch = [(key, value) for key, value in conf.items() if _AT_LAUNCH.match(key)]
    with (logs / "jvm.log").open("ab") as log:
        try:
            return launch_gateway(  # type: ignore[no-untyped-call]
                SparkConf(loadDefaults=False).setAll(launch),
                {"stdout": log, "stderr": log, "start_new_session": True},
            )
        except Exception as failure:
            raise SetupError(
                f"Spark did not start: {failure}",
                where=str(logs / "jvm.log"),
                hint="try `icestream doctor`",
            ) from None


def _settings(
    name: str,
    logs: Path,
    scratch: Path,
    settings: Mapping[str, str],
    jar_files: list[str],
    java_options: Sequence[str],
) -> dict[str, str]:
    configuration = logs / "log4j2.properties"
    configuration.write_text(_LOGGING.format(file=(logs / "spark.log").absolute()))
    conf = {
        **_SETTINGS,
        "spark.app.name": f"icestream {name}",
        "spark.local.dir": str(scratch.absolute()),
        "spark.sql.warehouse.dir": str((scratch / "warehouse").absolute()),
    }
    conf.update({key: value for key, value in settings.items() if not _is_joined(key)})
    if conf["spark.master"].startswith("local"):
        conf.setdefault("spark.driver.bindAddress", "127.0.0.1")
        conf.setdefault("spark.driver.host", "127.0.0.1")
    else:
        conf["spark.jars"] = ",".join([*jar_files, *filter(None, [settings.get("spark.jars")])])
    flags = [
        f"-Dlog4j2.configurationFile=file:{configuration.absolute()}",
        f"-XX:ErrorFile={logs.absolute()}/hs_err_pid%p.log",
        ended.FLAG,
    ]
    conf["spark.driver.extraClassPath"] = os.pathsep.join(
        [*jar_files, *filter(None, [settings.get("spark.driver.extraClassPath")])]
    )
    conf[_DRIVER_JAVA] = _java_flags([*flags, *java_options], settings.get(_DRIVER_JAVA, ""))
    conf[_EXECUTOR_JAVA] = _java_flags(java_options, settings.get(_EXECUTOR_JAVA, ""))
    return conf


def _java_flags(flags: Sequence[str], user_flags: str) -> str:
    """Return the JVM's flags; the user's come last, where they win."""
    # Rows are short-lived garbage on few cores: a collector made for throughput wins.
    collector = [] if _COLLECTOR.search(user_flags) else ["-XX:+UseParallelGC"]
    return " ".join([*collector, *_COMPILER, *flags, *filter(None, [user_flags])])


def _is_joined(key: str) -> bool:
    """Return whether the user's value of a setting is added to ours instead of replacing it."""
    return key in ("spark.driver.extraClassPath", _DRIVER_JAVA, _EXECUTOR_JAVA, "spark.jars")

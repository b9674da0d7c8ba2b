"""Spark reads and writes oncelog: `format("oncelog")`, exactly once. docs/spark.md tells how to use it.

If `oncelog-spark` is installed beside Spark, Spark finds the format by itself, through the package `pyspark_oncelog`.
Where it can't, `register(spark)` adds it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException
from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader
    from pyspark.sql.types import StructType

    from spark_sink.sink import BatchSink, StreamSink

__all__ = ["OncelogDataSource", "WrongPython", "register"]


class OncelogDataSource(DataSource):
    """What Spark asks for readers and writers. Each is imported when it is needed, because a process of Spark needs
    only one.
    """

    @classmethod
    def name(cls) -> str:
        return "oncelog"

    def schema(self) -> StructType:
        from spark_sink.source import schema

        return schema(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        from spark_sink.source import OncelogReader, check_schema

        check_schema(schema, self.options)
        return OncelogReader(self.options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from spark_sink.source import OncelogStreamReader, check_schema

        check_schema(schema, self.options)
        return OncelogStreamReader(self.options)

    def writer(self, schema: StructType, overwrite: bool) -> BatchSink:
        from spark_sink.errors import OptionError
        from spark_sink.sink import BatchSink
        from spark_sink.sink_options import read_sink_options

        if overwrite:
            raise OptionError("mode", "must be append: what a topic holds can't be replaced")
        return BatchSink(read_sink_options(self.options, streaming=False), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamSink:
        """`overwrite` means the output mode `complete`. As with Spark's Kafka sink, each batch then appends the whole
        result.
        """
        from spark_sink.sink import StreamSink
        from spark_sink.sink_options import read_sink_options

        return StreamSink(read_sink_options(self.options, streaming=True), schema)


# Spark itself puts pyspark on its workers' path, which this package imports.
NEEDED = "import kio, pyarrow, importlib.util as u; u.find_spec('spark_sink') or exit('No module named spark_sink')"


class WrongPython(RuntimeError):
    """Spark would run our code with a Python that does not have it."""


def register(spark: SparkSession) -> None:
    """Make `format("oncelog")` known to a session, whose Python workers must be able to import it."""
    _check_python(spark)
    try:
        spark.dataSource.register(OncelogDataSource)
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":  # PySpark 4.0, where it has found the format by itself
            raise


def _check_python(spark: SparkSession) -> None:
    """Spark runs Python code with the `python3` on the path, unless PYSPARK_PYTHON names another. In local mode the
    Python of this process is right. On a cluster only its administrator knows what is installed; so the one found here
    is tried.
    """
    context = getattr(spark, "sparkContext", None)  # none in Spark Connect
    if context is None:
        return
    if context.master.partition("[")[0] == "local" and "PYSPARK_PYTHON" not in os.environ:
        context.pythonExec = sys.executable
    python = shutil.which(context.pythonExec)
    if python == sys.executable:
        return
    problem = "there is no such program"
    if python is not None:
        tried = subprocess.run([python, "-c", NEEDED], capture_output=True, text=True, check=False)
        if tried.returncode == 0:
            return
        problem = tried.stderr.strip().rpartition("\n")[2]
    raise WrongPython(
        f"Spark runs Python code with {context.pythonExec!r}, which lacks what oncelog-spark needs ({problem})."
        f" Before the job starts, say: export PYSPARK_PYTHON={sys.executable}"
    )

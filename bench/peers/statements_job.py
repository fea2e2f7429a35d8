"""Runs SQL statements one after the other and writes down when each began and ended: a program."""

import json
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    spark = SparkSession.builder.config(map=job["conf"]).getOrCreate()
    with Path(job["told"]).open("w") as told:
        for name, statement in job["statements"]:
            began = time.time()
            rows = [row.asDict() for row in spark.sql(statement).collect()]
            done = {"name": name, "began": began, "ended": time.time(), "rows": rows}
            told.write(json.dumps(done, default=str) + "\n")
    time.sleep(0.5)  # so that the end of the last one is within what was sampled
    spark.stop()


if __name__ == "__main__":
    main()

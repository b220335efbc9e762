"""placeholder"""

from pyspark.sql.datasource import DataSource


class DelayServerSink(DataSource):
    @classmethod
    def name(cls):
        return "delayserver"

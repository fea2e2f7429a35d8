"""Apache Kafka: Spark's source reads the records, librdkafka answers what is asked beside it."""

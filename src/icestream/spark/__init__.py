"""The Spark session and what it stands on: a Java, a set of verified jars, a cache folder."""

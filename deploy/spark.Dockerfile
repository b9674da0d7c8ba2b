# A Spark pipeline of spark_sink/demo: docker build -f deploy/spark.Dockerfile -t oncelog-spark .
FROM python:3.12-slim
RUN apt-get update \
 && apt-get install -y --no-install-recommends default-jre-headless \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --uid 10001 --user-group --home-dir /checkpoint --no-create-home spark \
 && mkdir /checkpoint && chown spark:spark /checkpoint
COPY spark_sink /src/spark_sink
RUN pip install --no-cache-dir /src/spark_sink
COPY spark_sink/demo /demo
ENV PYTHONUNBUFFERED=1 PYSPARK_PYTHON=python3
USER 10001:10001
WORKDIR /demo
VOLUME /checkpoint
ENTRYPOINT ["python"]

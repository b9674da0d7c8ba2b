# A Spark pipeline of spark_sink/demo: docker build -f deploy/spark.Dockerfile -t oncelog-spark .
FROM python:3.12-slim AS build
WORKDIR /src
COPY deploy/build-requirements.txt deploy/spark-requirements.txt ./
# PySpark comes as its sources: its wheel is built with what ours is built with.
RUN python -m venv /opt/build && python -m venv /opt/spark \
 && /opt/build/bin/pip install --no-cache-dir --require-hashes --requirement build-requirements.txt \
 && /opt/build/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /dist \
      --require-hashes --requirement spark-requirements.txt
COPY spark_sink spark_sink
RUN /opt/build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /dist ./spark_sink \
 && /opt/spark/bin/pip install --no-cache-dir --no-index /dist/*.whl \
 && /opt/spark/bin/pip check

FROM python:3.12-slim
LABEL org.opencontainers.image.title="oncelog-spark" \
      org.opencontainers.image.description="Pipelines of Spark that read and write oncelog, exactly once"
RUN apt-get update \
 && apt-get install -y --no-install-recommends default-jre-headless \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --uid 10001 --user-group --home-dir /checkpoint --no-create-home spark \
 && mkdir /checkpoint && chown spark:spark /checkpoint
COPY --from=build /opt/spark /opt/spark
COPY spark_sink/demo /demo
ENV PATH=/opt/spark/bin:$PATH PYTHONUNBUFFERED=1 PYSPARK_PYTHON=/opt/spark/bin/python
USER 10001:10001
WORKDIR /demo
VOLUME /checkpoint
ENTRYPOINT ["python"]

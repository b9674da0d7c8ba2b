# Everything one does with a clone of oncelog. `make` alone lists it.

ENV        := .venv/bin
PYTHON_RUN := $(ENV)/python
SOURCES := service txn idempotence log isolation spark_sink monitoring tests

# make sim SEED=7 replays one run; make sim N=1000 runs many, of seeds drawn anew unless FROM=7 says where they begin
SEED   ?=
FROM   ?=
N      ?=
FRAMES ?= 200000
ARGS   ?=

.DEFAULT_GOAL := help
# quick-tests, install and install-dev are steps of others; the rest is for people.
.PHONY: help install install-dev serve clean check test lint types format quick-tests docs site boards screens transcripts sim sim-cluster \
        sim-groups sim-web walks mutants mutants-cluster mutants-groups mutants-web conformance conformance-web clients clients-java clients-more \
        fuzz fuzz-http chaos chaos-cluster churn \
        alarms demo-whole bench bench-turns bench-spark spark-demo spark-cluster spark-connector spark-versions spark-crashes spark-chaos spark-extremes

help: ## this list
	@awk -F ':.*## ' '/^##@ /{printf "\n%s\n", substr($$0, 5)} /^[a-z-]+:.*## /{printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# While pyproject.toml is as it was at the last install, the stamps spare `make serve` from asking pip anything.
# What the tests need includes what serving needs.
.venv/.installed-run: pyproject.toml .ci/environment
	@if [ .venv/.installed-dev -nt pyproject.toml ] && [ .venv/.installed-dev -nt .ci/environment ]; then :; \
	 else .ci/environment run; fi
	@touch $@

.venv/.installed-dev: pyproject.toml .ci/environment
	@.ci/environment dev
	@touch $@

install: .venv/.installed-run
install-dev: .venv/.installed-dev

##@ To run it

serve: install ## a broker on localhost:9092, its data in ./data (ARGS="--port 9093" for more)
	@exec $(ENV)/oncelog serve $(ARGS)

clean: ## remove the environment and the caches; ./data stays
	rm -rf .venv build .mypy_cache .pytest_cache .ruff_cache .hypothesis *.egg-info
	find $(SOURCES) -name __pycache__ -prune -exec rm -rf {} +

##@ Before every commit

QUICK_TESTS := tests/tidy tests/log tests/idempotence tests/isolation tests/txn tests/transcripts tests/service/wire \
               tests/service/groups tests/service/cluster tests/service/stores/test_sql.py tests/service/client tests/service/broker tests/monitoring/test_metrics.py tests/monitoring/test_boards.py tests/monitoring/test_burrow.py

check: install-dev ## a minute or two: style, types and the quick tests, side by side
	@$(MAKE) --no-print-directory --jobs=2 --keep-going --output-sync=target lint types quick-tests

test: lint types ## everything the build machine runs: style, types and the whole suite
	$(PYTHON_RUN) -m pytest --numprocesses=3 --dist=loadfile --no-loadscope-reorder

lint: install-dev ## ruff: style and format
	$(ENV)/ruff check .
	$(ENV)/ruff format --check .

types: install-dev ## mypy --strict
	$(ENV)/mypy

format: install-dev ## let ruff rewrite what it can
	$(ENV)/ruff check --fix .
	$(ENV)/ruff format .

quick-tests: install-dev
	$(PYTHON_RUN) -m pytest $(QUICK_TESTS)

##@ To write anew what is generated from the code

docs: install ## write the references in docs/ anew: settings, metrics, commands, HTTP operations
	$(ENV)/oncelog config docs > docs/configuration.md
	$(PYTHON_RUN) -m monitoring.reference > docs/monitoring.md
	$(PYTHON_RUN) -m service.cli.reference commands > docs/commands.md
	$(PYTHON_RUN) -m service.cli.reference http > docs/http-reference.md

site: install-dev ## the documentation as a site, in build/site
	NO_MKDOCS_2_WARNING=1 $(ENV)/mkdocs build --strict --quiet

boards: install ## write the Grafana boards anew from monitoring/boards.py
	$(PYTHON_RUN) -m monitoring.boards

screens: install-dev ## pictures of every page, into docs/screens (needs Chromium)
	$(PYTHON_RUN) -m tests.ui.screenshots

transcripts: install-dev ## rewrite tests/transcripts/*.txt; review the difference
	$(PYTHON_RUN) -m tests.transcripts $(ARGS)

##@ When what decides, stores or replicates has changed: the simulation

sim: install-dev ## the whole broker in one seeded simulation: SEED=n replays a run, N=1000 runs many
	$(PYTHON_RUN) -m tests.sim $(if $(SEED),--seed $(SEED)) $(if $(FROM),--from $(FROM)) $(if $(N),--runs $(N)) $(ARGS)

sim-cluster: install-dev ## three to five brokers in one seeded simulation: SEED=n, N=1000, FROM=n
	$(PYTHON_RUN) -m tests.sim.cluster $(if $(SEED),--seed $(SEED)) $(if $(FROM),--from $(FROM)) $(if $(N),--runs $(N)) $(ARGS)

sim-groups: install-dev ## the group coordinator and members of all kinds in a world of their own, and a coordinator on a real shard: SEED=n, N=1000, FROM=n
	$(PYTHON_RUN) -m tests.sim.groups $(if $(SEED),--seed $(SEED)) $(if $(FROM),--from $(FROM)) $(if $(N),--runs $(N)) $(ARGS)

sim-web: install-dev ## the exactly-once workload by HTTP, at three to five brokers in one seeded simulation: SEED=n, N=1000, FROM=n
	$(PYTHON_RUN) -m tests.sim.web $(if $(SEED),--seed $(SEED)) $(if $(FROM),--from $(FROM)) $(if $(N),--runs $(N)) $(ARGS)

walks: install-dev ## the logs of three replicas against a model: SEED=n, N=1000, FROM=n
	$(PYTHON_RUN) -m tests.properties.replicas $(if $(SEED),--seed $(SEED)) $(if $(FROM),--from $(FROM)) $(if $(N),--runs $(N))

mutants: install-dev ## plant known bugs and show that the simulation catches each
	$(PYTHON_RUN) -m tests.sim.mutants $(ARGS)

mutants-cluster: install-dev ## the same for replication, in the simulated cluster
	$(PYTHON_RUN) -m tests.sim.cluster_mutants $(ARGS)

mutants-groups: install-dev ## the same for the group coordinator
	$(PYTHON_RUN) -m tests.sim.group_mutants $(ARGS)

mutants-web: install-dev ## the same for the HTTP API
	$(PYTHON_RUN) -m tests.sim.web_mutants $(ARGS)

##@ When the protocol or its edges have changed: Apache Kafka, real clients, hostile ones

conformance: install-dev ## the same conversations with oncelog and Apache Kafka, answers compared (needs Java 17)
	$(PYTHON_RUN) -m tests.conformance $(ARGS)
	$(PYTHON_RUN) -m tests.conformance.retention

conformance-web: install-dev ## the same calls of the REST Proxy's version 2 with oncelog and with Strimzi's Kafka Bridge (ARGS="--bridge http://HOST:8080"; recorded answers without)
	$(PYTHON_RUN) -m tests.conformance.web $(ARGS)

clients: install-dev ## real clients (confluent-kafka, aiokafka, kafka-python, kcat) against a real process
	$(PYTHON_RUN) -m pytest tests/clients $(ARGS)

clients-java: install-dev ## Kafka's own command line tools and Java client (needs Java 17 and Maven)
	$(PYTHON_RUN) -m tests.clients.java $(ARGS)

clients-more: install-dev ## further clients, in the languages this machine has
	$(PYTHON_RUN) -m tests.clients.more $(ARGS)

fuzz: install-dev ## hostile frames at the codec of every API, hostile requests at every handler: FRAMES=10000000 for the long run
	$(PYTHON_RUN) -m tests.fuzz --frames $(FRAMES) $(ARGS)

fuzz-http: install-dev ## requests generated from the OpenAPI document, every answer checked: ARGS="--cases 1000"
	$(PYTHON_RUN) -m tests.service.web.exploring $(ARGS)

##@ Before a release: real processes that are killed, paused and cut off

chaos: install-dev ## real clients in transactions while they and the broker are killed: ARGS="--seconds 300 --seed 7"
	$(PYTHON_RUN) -m tests.chaos $(ARGS)

chaos-cluster: install-dev ## three brokers and three ZooKeepers, killed and cut off while clients write: ARGS="--seconds 600 --seed 7"
	$(PYTHON_RUN) -m tests.chaos.cluster $(ARGS)

churn: install-dev ## groups of real clients while members and the broker are killed and paused: ARGS="--minutes 10 --seed 7"
	$(PYTHON_RUN) -m tests.chaos.churn $(ARGS)

demo-whole: install-dev ## `oncelog demo` with ZooKeeper, load, Spark and Prometheus, while a broker dies
	$(PYTHON_RUN) -m pytest tests/deploy/whole_demo.py $(ARGS)

alarms: install-dev ## what goes wrong for real makes the right alerts fire: Prometheus, Alertmanager, three brokers
	$(PYTHON_RUN) -m pytest -p no:randomly tests/monitoring/alarms.py $(ARGS)

##@ When the way of a record has changed: measure

bench: install-dev ## throughput, latency, memory, start-up: a table of medians (PEER=kafka, BASE=HEAD~1, BRIDGE=http://HOST:8080 compare)
	$(PYTHON_RUN) -m tests.bench $(if $(PEER),--peer $(PEER)) $(if $(BASE),--base $(BASE)) $(ARGS)

bench-turns: install-dev ## the longest turn of the event loop that the largest request of each API causes: ARGS="--only metadata --where 10"
	$(PYTHON_RUN) -m tests.bench.turns $(ARGS)

bench-spark: install-dev ## Spark reading and writing, beside Spark's own Kafka connector (PEER=kafka: also on Apache Kafka)
	$(PYTHON_RUN) -m tests.spark.bench $(if $(PEER),--peer $(PEER)) $(ARGS)

##@ When Spark's part has changed

spark-demo: install-dev ## two pipelines to copy, killed half way and checked: transfers with a sum, sessions by window
	$(PYTHON_RUN) -m tests.spark.demo $(ARGS)

spark-cluster: install-dev ## spark-submit to a standalone master with two workers, its driver killed once
	$(PYTHON_RUN) -m tests.spark.submit $(ARGS)

spark-connector: install-dev ## Spark's own Kafka connector, batch and stream (needs Java 17, Maven, PyPI)
	$(PYTHON_RUN) -m tests.spark.connector $(ARGS)

spark-versions: install-dev ## our data source on PySpark 4.0, 4.1, 4.2 and 4.3 (needs Java 17, PyPI)
	$(PYTHON_RUN) -m tests.spark.connector --ours $(ARGS)

spark-crashes: install-dev ## a Spark driver killed at each point where its death could lose or double rows
	$(PYTHON_RUN) -m pytest -rs tests/spark_sink/crashes_of_the_sink.py $(ARGS)

spark-chaos: install-dev ## driver, executors, tasks and broker die while Spark copies a topic: ARGS="--minutes 10 --seed 7"
	$(PYTHON_RUN) -m tests.spark.chaos $(ARGS)

spark-extremes: install-dev ## one transaction from 10,000 Spark tasks, and one from an Arrow batch of 1 GB: each row once, and the memory it took
	$(PYTHON_RUN) -m tests.spark.extremes $(ARGS)

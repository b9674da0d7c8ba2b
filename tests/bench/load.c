// What a native client gets out of a broker: a load maker on librdkafka, built by tests/bench/native.py.
//
//   load produce   BOOTSTRAP TOPIC MESSAGES SIZE              as fast as it goes
//   load consume   BOOTSTRAP TOPIC MESSAGES PARTITIONS        from the beginning, every partition
//   load pace      BOOTSTRAP TOPIC SECONDS SIZE               -r messages a second; how long each waits for its acknowledgement
//   load transact  BOOTSTRAP TOPIC MESSAGES SIZE              one transaction every -e ms; every -a th is aborted
//   load small     BOOTSTRAP TOPIC SECONDS SIZE               one-message transactions one after another
//
//   -s name=value  a setting of librdkafka, as often as needed
//
// Prints one line of JSON. Ends with 1 if a message was lost or refused.
#include <librdkafka/rdkafka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MAX_SETTINGS 64
#define CHUNK 10000

static const char *bootstrap, *topic, *settings[MAX_SETTINGS];
static int setting_count, rate = 10000, every_ms = 100, abort_every;

static double seconds_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void stop_because(const char *doing, const char *why) {
    fprintf(stderr, "load: %s: %s\n", doing, why);
    exit(2);
}

static void must(rd_kafka_error_t *error, const char *doing) {
    if (error) stop_because(doing, rd_kafka_error_string(error));
}

// ---- samples: how long things took, for percentiles

typedef struct { double *values; size_t count, room; } Samples;

static void add_sample(Samples *all, double value) {
    if (all->count == all->room) {
        all->room = all->room ? all->room * 2 : 1 << 16;
        all->values = realloc(all->values, all->room * sizeof *all->values);
        if (!all->values) stop_because("samples", "out of memory");
    }
    all->values[all->count++] = value;
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double percentile_ms(Samples *all, double share) {
    if (!all->count) return -1;
    return all->values[(size_t)(share * (double)(all->count - 1))] * 1e3;
}

static void print_percentiles(const char *name, Samples *all) {
    qsort(all->values, all->count, sizeof *all->values, by_size);
    printf(", \"%s_p50_ms\": %.3f, \"%s_p99_ms\": %.3f, \"%s_max_ms\": %.3f", name, percentile_ms(all, 0.5), name,
           percentile_ms(all, 0.99), name, percentile_ms(all, 1.0));
}

// ---- one producer or consumer with the settings of the command line

static rd_kafka_conf_t *configuration(void) {
    char why[256];
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    if (rd_kafka_conf_set(conf, "bootstrap.servers", bootstrap, why, sizeof why)) stop_because("bootstrap", why);
    for (int i = 0; i < setting_count; i++) {
        char name[128];
        const char *equals = strchr(settings[i], '=');
        if (!equals || (size_t)(equals - settings[i]) >= sizeof name) stop_because(settings[i], "not name=value");
        memcpy(name, settings[i], (size_t)(equals - settings[i]));
        name[equals - settings[i]] = 0;
        if (rd_kafka_conf_set(conf, name, equals + 1, why, sizeof why)) stop_because(settings[i], why);
    }
    return conf;
}

static void set(rd_kafka_conf_t *conf, const char *name, const char *value) {
    char why[256];
    if (rd_kafka_conf_set(conf, name, value, why, sizeof why)) stop_because(name, why);
}

static rd_kafka_t *client(rd_kafka_type_t type, rd_kafka_conf_t *conf) {
    char why[256];
    rd_kafka_t *made = rd_kafka_new(type, conf, why, sizeof why);
    if (!made) stop_because("client", why);
    return made;
}

// Text that compresses like text: letters in an order that does not repeat for a while.
static char *payload(size_t size) {
    char *text = malloc(size + 1);
    unsigned state = 12345;
    for (size_t i = 0; i < size; i++) {
        state = state * 1103515245u + 12345u;
        text[i] = (char)('a' + (state >> 16) % 26);
    }
    return text;
}

static long acknowledged, refused;
static Samples waits;

static void on_acknowledged(rd_kafka_t *rk, const rd_kafka_message_t *message, void *opaque) {
    (void)rk, (void)opaque;
    if (message->err) refused++;
    else acknowledged++;
    if (message->_private) {  // pace keeps the time it was handed over at
        double *handed_over = message->_private;
        add_sample(&waits, seconds_now() - *handed_over);
        free(handed_over);
    }
}

static rd_kafka_t *new_producer(const char *transactional_id) {
    rd_kafka_conf_t *conf = configuration();
    set(conf, "queue.buffering.max.messages", "1500000");
    set(conf, "queue.buffering.max.kbytes", "1500000");
    if (transactional_id) set(conf, "transactional.id", transactional_id);
    rd_kafka_conf_set_dr_msg_cb(conf, on_acknowledged);
    return client(RD_KAFKA_PRODUCER, conf);
}

static void hand_over(rd_kafka_t *rk, rd_kafka_topic_t *where, char *text, size_t size, void *note) {
    while (rd_kafka_produce(where, RD_KAFKA_PARTITION_UA, RD_KAFKA_MSG_F_COPY, text, size, NULL, 0, note)) {
        if (rd_kafka_last_error() != RD_KAFKA_RESP_ERR__QUEUE_FULL) stop_because("produce", rd_kafka_err2str(rd_kafka_last_error()));
        rd_kafka_poll(rk, 5);
    }
}

static void wait_for_everything(rd_kafka_t *rk) {
    while (rd_kafka_outq_len(rk) > 0) rd_kafka_poll(rk, 5);
}

static int finish(const char *extra_after_rate, double took, long messages, double size) {
    if (took <= 0) took = 1e-9;  // all of it came in one chunk
    printf("{\"messages\": %ld, \"seconds\": %.4f, \"per_second\": %.1f, \"mb_per_second\": %.2f, \"refused\": %ld", messages, took,
           (double)messages / took, (double)messages * size / took / 1e6, refused);
    if (waits.count) print_percentiles("wait", &waits);
    printf("%s}\n", extra_after_rate);
    return refused ? 1 : 0;
}

static int produce(long messages, size_t size) {
    rd_kafka_t *rk = new_producer(NULL);
    rd_kafka_topic_t *where = rd_kafka_topic_new(rk, topic, NULL);
    char *text = payload(size);
    double began = seconds_now();
    for (long n = 0; n < messages; n++) {
        hand_over(rk, where, text, size, NULL);
        if (n % 2048 == 0) rd_kafka_poll(rk, 0);
    }
    wait_for_everything(rk);
    return finish("", seconds_now() - began, acknowledged, (double)size);
}

static int pace(double seconds, size_t size) {
    rd_kafka_t *rk = new_producer(NULL);
    rd_kafka_topic_t *where = rd_kafka_topic_new(rk, topic, NULL);
    char *text = payload(size);
    const struct rd_kafka_metadata *metadata;  // connect first: the first wait shall not be that of connecting
    if (rd_kafka_metadata(rk, 0, where, &metadata, 10000) == RD_KAFKA_RESP_ERR_NO_ERROR) rd_kafka_metadata_destroy(metadata);
    for (int n = 0; n < 200; n++) hand_over(rk, where, text, size, NULL);
    wait_for_everything(rk);
    acknowledged = 0;
    long due, sent = 0;
    double began = seconds_now(), now = began;
    while ((now = seconds_now()) - began < seconds) {
        due = (long)((now - began) * rate);
        for (; sent < due; sent++) {
            double *handed_over = malloc(sizeof *handed_over);
            *handed_over = seconds_now();
            hand_over(rk, where, text, size, handed_over);
        }
        rd_kafka_poll(rk, 0);
        usleep(50);
    }
    wait_for_everything(rk);
    return finish("", seconds_now() - began, acknowledged, (double)size);
}

static int transact(long messages, size_t size) {
    rd_kafka_t *rk = new_producer("load-transact");
    rd_kafka_topic_t *where = rd_kafka_topic_new(rk, topic, NULL);
    char *text = payload(size), extra[128];
    must(rd_kafka_init_transactions(rk, 60000), "init");
    must(rd_kafka_begin_transaction(rk), "begin");
    long ended = 0, aborted = 0, lost = 0, since = 0;
    double began = seconds_now(), opened = began;
    for (long n = 0; n < messages; n++) {
        hand_over(rk, where, text, size, NULL);
        if (n % 512) continue;
        rd_kafka_poll(rk, 0);
        if (seconds_now() - opened < every_ms / 1e3) continue;
        ended++;
        if (abort_every && ended % abort_every == 0) {
            // What is aborted shall have been written, or readers would have nothing to skip.
            must(rd_kafka_flush(rk, 60000) ? rd_kafka_error_new(RD_KAFKA_RESP_ERR__TIMED_OUT, "flush") : NULL, "flush");
            must(rd_kafka_abort_transaction(rk, 60000), "abort");
            aborted++;
            lost += n + 1 - since;
        } else must(rd_kafka_commit_transaction(rk, 60000), "commit");
        must(rd_kafka_begin_transaction(rk), "begin");
        opened = seconds_now(), since = n + 1;
    }
    must(rd_kafka_commit_transaction(rk, 60000), "commit");
    wait_for_everything(rk);
    snprintf(extra, sizeof extra, ", \"transactions\": %ld, \"aborted\": %ld, \"committed_messages\": %ld", ended + 1, aborted,
             messages - lost);
    return finish(extra, seconds_now() - began, acknowledged, (double)size);
}

static int small(double seconds, size_t size) {
    rd_kafka_t *rk = new_producer("load-small");
    rd_kafka_topic_t *where = rd_kafka_topic_new(rk, topic, NULL);
    char *text = payload(size);
    must(rd_kafka_init_transactions(rk, 60000), "init");
    Samples whole = {0}, end = {0};
    double opened = 0;
    long done = 0;
    for (int n = 0;; n++) {
        double began = seconds_now();
        if (n == 20) opened = began;  // the first ones warm both sides up
        if (n >= 20 && began - opened >= seconds) break;
        must(rd_kafka_begin_transaction(rk), "begin");
        hand_over(rk, where, text, size, NULL);
        rd_kafka_flush(rk, 60000);
        double ending = seconds_now();
        must(rd_kafka_commit_transaction(rk, 60000), "commit");
        double ended = seconds_now();
        if (n < 20) continue;
        done++;
        add_sample(&whole, ended - began);
        add_sample(&end, ended - ending);
    }
    double took = seconds_now() - opened;
    printf("{\"messages\": %ld, \"seconds\": %.4f, \"per_second\": %.1f, \"refused\": %ld", done, took, done / took, refused);
    print_percentiles("whole", &whole);
    print_percentiles("end", &end);
    printf("}\n");
    return refused ? 1 : 0;
}

static int consume(long messages, int partitions) {
    rd_kafka_conf_t *conf = configuration();
    set(conf, "group.id", "load");
    set(conf, "enable.auto.commit", "false");
    set(conf, "queued.max.messages.kbytes", "1000000");
    rd_kafka_t *rk = client(RD_KAFKA_CONSUMER, conf);
    rd_kafka_topic_partition_list_t *places = rd_kafka_topic_partition_list_new(partitions);
    for (int p = 0; p < partitions; p++) rd_kafka_topic_partition_list_add(places, topic, p)->offset = RD_KAFKA_OFFSET_BEGINNING;
    rd_kafka_assign(rk, places);
    rd_kafka_queue_t *queue = rd_kafka_queue_get_consumer(rk);
    static rd_kafka_message_t *chunk[CHUNK];
    double began = 0, bytes = 0, last = seconds_now();
    long got = 0;
    while (got < messages && seconds_now() - last < 15) {
        ssize_t count = rd_kafka_consume_batch_queue(queue, 100, chunk, CHUNK);
        if (count > 0) last = seconds_now();
        if (count > 0 && !began) began = last;  // connecting is not reading
        for (ssize_t i = 0; i < count; i++) {
            if (chunk[i]->err) refused++;
            else got++, bytes += (double)chunk[i]->len;
            rd_kafka_message_destroy(chunk[i]);
        }
    }
    finish("", last - began, got, got ? bytes / (double)got : 0);
    return got < messages ? 1 : 0;
}

int main(int count, char **words) {
    int option;
    while ((option = getopt(count, words, "s:r:e:a:")) != -1) switch (option) {
        case 's': if (setting_count < MAX_SETTINGS) settings[setting_count++] = optarg; break;
        case 'r': rate = atoi(optarg); break;
        case 'e': every_ms = atoi(optarg); break;
        case 'a': abort_every = atoi(optarg); break;
        default: return 2;
    }
    if (count - optind != 5) stop_because("usage", "load [options] produce|consume|pace|transact|small BOOTSTRAP TOPIC AMOUNT SIZE");
    const char *what = words[optind];
    bootstrap = words[optind + 1], topic = words[optind + 2];
    double amount = atof(words[optind + 3]);
    long size = atol(words[optind + 4]);
    if (!strcmp(what, "produce")) return produce((long)amount, (size_t)size);
    if (!strcmp(what, "consume")) return consume((long)amount, (int)size);
    if (!strcmp(what, "pace")) return pace(amount, (size_t)size);
    if (!strcmp(what, "transact")) return transact((long)amount, (size_t)size);
    if (!strcmp(what, "small")) return small(amount, (size_t)size);
    stop_because(what, "no such load");
    return 2;
}

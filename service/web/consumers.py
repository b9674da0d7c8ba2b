"""The consumer calls of Confluent's REST Proxy, version 2: programs written for it make instances, subscribe or assign
them, read, move, commit and delete. The errors are those of the REST Proxy.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any, TypeVar
from urllib.parse import quote

import msgspec
from aiohttp import ClientError, web

from log.ids import TopicPartition
from service.broker.internal_topics import GROUPS
from service.client.failures import ClientFailure
from service.web.answers import list_in_turns, query_int
from service.web.consuming import PAGE_BYTES, PAGE_BYTES_MAX, WAIT_MS_MAX
from service.web.forwarding import FORWARDED, client_gone, forward, media_of, url_of
from service.web.gateway import PAUSE_S, TIMEOUT_S, Gateway
from service.web.groups import committed_by
from service.web.instances import (
    ASKED,
    READ_CHARACTERS,
    Form,
    Front,
    Instance,
    InstanceProblem,
    RecordV2,
    Turn,
    Wishes,
    not_found,
    not_in_form,
)
from service.web.members import EARLIEST, LATEST, home
from service.web.problems import Problem
from service.web.routing import ENDED, JSON, Route, integer
from service.web.taking import CAME_S, Given, is_there
from service.web.unpacking import body_of

T = TypeVar("T")

logger = logging.getLogger("oncelog.http")

MEDIA = "application/vnd.kafka.v2+json"
MEDIA_OF = {form: f"application/vnd.kafka.{form.value}.v2+json" for form in Form}
SCHEMA_FORMS = ("avro", "jsonschema", "protobuf")
WITH_SCHEMAS = tuple(f"application/vnd.kafka.{form}.v2+json" for form in SCHEMA_FORMS)
NAME_MAX = 249
TIMEOUT_MS = 1000
MIN_BYTES_MAX = 10_000_000
READ = "X-Oncelog-Read"
"""A request header that names a read which another broker forwards."""
EPOCH = "X-Oncelog-Epoch"
"""A request header that tells which life of the other broker forwards the read."""
LOST = "X-Oncelog-Lost"
"""A request header that names a read which another broker has forwarded, and whose answer nobody got."""
WHICH = "X-Oncelog-Which"
"""A request header: which instance has this name now?"""
LIFE = "X-Oncelog-Life"
"""A header of answers to other brokers, and of what they tell of these: which instance has given it."""
LOST_PAUSE_S = 1.0
"""The longest pause before a lost answer is told of again."""
CODES = {"unknown-topic": 40401, "denied": 40301, "unauthenticated": 40101, "not-now": 50003, "outcome-unknown": 50003}


class ErrorV2(msgspec.Struct):
    error_code: int
    message: str


def refuse(problem: Problem) -> web.Response:
    status = problem.kind.status
    known = CODES.get(problem.slug, status if status < 500 else 50002)
    code = problem.code if isinstance(problem, InstanceProblem) else known
    message = problem.detail or problem.kind.title
    return _answer(ErrorV2(code, message), status=status, headers=problem.all_headers)


def _answer(
    value: Any, media: str = MEDIA, *, status: int = 200, headers: dict[str, str] | None = None
) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), status=status, content_type=media, headers=headers)


# -- bodies

Partition = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Offset = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 2)]


class NewInstance(msgspec.Struct, forbid_unknown_fields=True):
    """Every field may be left out, and numbers may be written as text."""

    name: str | None = None
    id: str | None = None
    """The older name of the field `name`."""
    format: str | None = None
    auto_offset_reset: str | None = msgspec.field(default=None, name="auto.offset.reset")
    auto_commit_enable: bool | None = msgspec.field(default=None, name="auto.commit.enable")
    fetch_min_bytes: int | None = msgspec.field(default=None, name="fetch.min.bytes")
    request_timeout_ms: int | None = msgspec.field(default=None, name="consumer.request.timeout.ms")


class Made(msgspec.Struct):
    instance_id: str
    base_uri: str


class SubscriptionIn(msgspec.Struct, forbid_unknown_fields=True):
    """Topics or a pattern. A pattern is RE2's and matches whole names."""

    topics: list[Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_MAX)]] | None = None
    topic_pattern: Annotated[str, msgspec.Meta(min_length=1)] | None = None


class Subscribed(msgspec.Struct):
    topics: list[str]


class PartitionV2(msgspec.Struct, forbid_unknown_fields=True):
    topic: str
    partition: Partition


class PartitionsV2(msgspec.Struct, forbid_unknown_fields=True):
    partitions: list[PartitionV2]


class OffsetV2(msgspec.Struct, forbid_unknown_fields=True):
    topic: str
    partition: Partition
    offset: Offset
    metadata: str | None = None


class OffsetsV2(msgspec.Struct, forbid_unknown_fields=True):
    offsets: list[OffsetV2]


_new_instances = msgspec.json.Decoder(NewInstance, strict=False)
_made = msgspec.json.Decoder(Made)
_subscriptions = msgspec.json.Decoder(SubscriptionIn)
_partitions = msgspec.json.Decoder(PartitionsV2)
_offsets = msgspec.json.Decoder(OffsetsV2)


async def _body(request: web.Request) -> bytes:
    body = await body_of(request)
    if body and media_of(request) not in (MEDIA, JSON, *MEDIA_OF.values(), *WITH_SCHEMAS):
        raise InstanceProblem("unsupported-media-type", 415, "HTTP 415 Unsupported Media Type")
    return body


def _read(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise InstanceProblem("invalid-request", 422, str(error)) from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise InstanceProblem("malformed", 400, f"the body is not JSON: {error}") from None


def _named(partitions: Iterable[PartitionV2]) -> list[TopicPartition]:
    return [TopicPartition(each.topic, each.partition) for each in partitions]


def _instance(gateway: Gateway, request: web.Request, read: str = "") -> Instance:
    return gateway.instances.find(request.match_info["group"], request.match_info["instance"], read, request[CAME_S])


def _done() -> web.Response:
    return web.Response(status=204)


# -- instances


async def make(gateway: Gateway, request: web.Request) -> web.StreamResponse:
    body = await _body(request)
    given = _new_instance(body)
    wishes = _wishes(given)
    group = request.match_info["group"]
    elsewhere = await home(gateway, request, body)
    if elsewhere is None:
        name = gateway.instances.make(group, given.id or given.name, wishes).member_id
    elif elsewhere.status == 200 and isinstance(elsewhere, web.Response):
        name = _made.decode(elsewhere.body or b"").instance_id  # type: ignore[arg-type]
    else:
        return elsewhere
    host = request.headers.get("Host", "localhost")
    place = f"{request.scheme}://{host}/consumers/{quote(group, safe='')}/instances/{quote(name, safe='')}"
    return _answer(
        Made(name, place)
    )  # the client goes on with the address that it has asked, wherever the instance lives


def _invalid(message: str) -> InstanceProblem:
    return InstanceProblem("invalid-request", 42204, f"Invalid consumer configuration: {message}")


def _new_instance(body: bytes) -> NewInstance:
    if not body:
        return NewInstance()
    try:
        return _read(body, _new_instances)
    except InstanceProblem as problem:
        raise (problem if problem.code == 400 else _invalid(str(problem.detail))) from None


def _wishes(given: NewInstance) -> Wishes:
    name = given.id or given.name
    if "" in (given.id, given.name):
        raise _invalid("an instance without a name can't be found")
    if name is not None and len(name) > NAME_MAX:
        raise _invalid(f"a name has at most {NAME_MAX} characters")
    form = (given.format or Form.BINARY.value).lower()
    if form in SCHEMA_FORMS:
        raise _invalid(f"format {form} needs a schema registry: binary and json don't")
    if form not in {each.value for each in Form}:
        raise InstanceProblem("invalid-request", 422, "Invalid format type.")
    reset = given.auto_offset_reset or "latest"
    if reset not in ("earliest", "latest", "none"):
        raise _invalid("auto.offset.reset is one of earliest, latest and none")
    min_bytes = 1 if given.fetch_min_bytes is None else given.fetch_min_bytes
    if not -1 <= min_bytes <= MIN_BYTES_MAX:
        raise _invalid(f"fetch.min.bytes is -1 to {MIN_BYTES_MAX}")
    timeout_ms = TIMEOUT_MS if given.request_timeout_ms is None else given.request_timeout_ms
    if not 0 <= timeout_ms < 2**31:
        raise _invalid("consumer.request.timeout.ms is a number of milliseconds")
    return Wishes(Form(form), reset, given.auto_commit_enable is not False, min_bytes, timeout_ms)


async def delete(gateway: Gateway, request: web.Request) -> web.StreamResponse:
    if (elsewhere := await home(gateway, request, b"")) is not None:
        return elsewhere
    await gateway.instances.leave(_instance(gateway, request))
    return _done()


# -- what an instance reads


async def subscribe(gateway: Gateway, request: web.Request) -> web.StreamResponse:
    body = await _body(request)
    wanted = _read(body, _subscriptions)
    if wanted.topics is None and wanted.topic_pattern is None:
        raise InstanceProblem("invalid-request", 422, "topics or topic_pattern says what to subscribe to")
    if wanted.topics is not None and wanted.topic_pattern is not None:
        raise InstanceProblem(
            "conflict", 40903, "Subscription to topics, partitions and pattern are mutually exclusive."
        )
    if (elsewhere := await home(gateway, request, body)) is not None:
        return elsewhere
    instance = _instance(gateway, request)
    if wanted.topics or wanted.topic_pattern:
        await gateway.instances.subscribe(instance, wanted.topics or [], wanted.topic_pattern or "", len(body))
    else:
        await gateway.instances.unsubscribe(instance)
    return _done()


async def subscription(gateway: Gateway, request: web.Request) -> web.StreamResponse:
    if (elsewhere := await home(gateway, request, b"")) is not None:
        return elsewhere
    instance = _instance(gateway, request)
    matched = {each.topic for each in instance.positions} if instance.pattern else ()
    return _answer(Subscribed(sorted({*instance.join.topics, *matched})))


async def unsubscribe(gateway: Gateway, request: web.Request) -> web.StreamResponse:
    if (elsewhere := await home(gateway, request, b"")) is not None:
        return elsewhere
    await gateway.instances.unsubscribe(_instance(gateway, request))
    return _done()


async def assign(gateway: Gateway, request: web.Request) -> web.StreamResponse:
    body = await _body(request)
    wanted = _read(body, _partitions)
    if (elsewhere := await home(gateway, request, body)) is not None:
        return elsewhere
    instance = _instance(gateway, request)
    if wanted.partitions:
        await gateway.instances.assign(instance, _named(wanted.partitions), len(body))
    else:
        await gateway.instances.unsubscribe(instance)
    return _done()


async def assignment(gateway: Gateway, request: web.Request) -> web.StreamResponse:
    if (elsewhere := await home(gateway, request, b"")) is not None:
        return elsewhere
    instance = _instance(gateway, request)
    return _answer(PartitionsV2([PartitionV2(*each) for each in sorted(instance.positions)]))


# -- reading


async def records(gateway: Gateway, request: web.Request) -> web.StreamResponse:
    form = _accepted(request)
    timeout_ms = query_int(request, "timeout", -1, least=-(2**63))
    max_bytes = query_int(request, "max_bytes", -1, least=-(2**63))
    group, name = request.match_info["group"], request.match_info["instance"]
    if (asked := request.headers.get(ASKED)) is not None:
        names = asked.split(",")
        await gateway.instances.forwarded.look(names, request[CAME_S])
        return _answer(gateway.instances.forwarded.fates(names))
    node = _in_front(request)
    if (lost := request.headers.get(LOST)) is not None:
        await gateway.instances.lost(group, name, request.headers.get(LIFE, ""), lost, node or 0)
        return _answer([])
    if WHICH in request.headers:
        return _answer([], headers={LIFE: _instance(gateway, request).life})
    handing = Handing(gateway, request)
    request[ENDED] = handing.ended
    read = "" if node is None else request.headers.get(READ, "")[:READ_CHARACTERS]
    patience_ms = min(timeout_ms if timeout_ms > 0 else TIMEOUT_MS, WAIT_MS_MAX)
    deadline_s = asyncio.get_running_loop().time() + patience_ms / 1000
    try:
        async with asyncio.timeout_at(deadline_s):
            told = await handing.wait_in_front()
        if not is_there(request):
            raise client_gone()
        if told is not None or (told := await handing.elsewhere()) is not None:
            return told
        instance = _instance(gateway, request, read)
        async with asyncio.timeout_at(deadline_s):
            await handing.wait(instance.reader)
    except TimeoutError:
        return _answer([], MEDIA_OF[form or Form.BINARY])  # the last answer is still on its way to the client
    if instance.is_gone:
        raise not_found()  # there may be another one of its name, which this read does not know
    instance.asked(read)  # it may have waited for the last answer
    if form is not instance.wishes.form:
        raise not_in_form(
            "The requested embedded data format does not match the deserializer for this consumer instance"
        )
    longest_ms = min(instance.wishes.timeout_ms, WAIT_MS_MAX)
    wait_ms = longest_ms if timeout_ms <= 0 else min(timeout_ms, longest_ms)
    max_bytes = max_bytes if max_bytes > 0 else PAGE_BYTES
    epoch = int(known) if re.fullmatch("[0-9]{1,18}", known := request.headers.get(EPOCH, "")) else None
    front = Front(read, node or 0, epoch)
    found = await gateway.instances.read(instance, request, front, max_bytes, wait_ms)
    handing.instance = instance
    content = await list_in_turns(found, lambda some: msgspec.json.encode(some)[1:-1])
    headers = None if node is None else {LIFE: instance.life}
    return web.Response(body=content, content_type=MEDIA_OF[form], headers=headers)


def _in_front(request: web.Request) -> int | None:
    """The broker that forwards the request."""
    number = request.headers.get(FORWARDED, "")
    return int(number) if re.fullmatch("[0-9]{1,10}", number) else None


class Handing:
    """A read that keeps others of its instance waiting, until its answer was taken by the client, or is lost. A lost
    one is taken back, so that the next read gives it.
    """

    def __init__(self, gateway: Gateway, request: web.Request) -> None:
        self._gateway = gateway
        self._request = request
        self._turns: list[Turn] = []
        """Which it has acquired."""
        self._holds = True
        """It has not released them."""
        self._given: Given | None = None
        """The answer, once it is written."""
        self._turn: Turn | None = None
        """That of this broker, if the instance lives elsewhere."""
        self._life = ""
        """Of the instance whose answer is being given, once that is known."""
        self._reads = gateway.instances.forwarded
        self.instance: Instance | None = None
        """The instance that has moved on, if it lives here."""
        self._named = ""
        """The name of the read, if the instance may have moved on elsewhere by it, or others have gone on behind it."""
        self._is_lost = False
        """The instance may have moved on by an answer that was lost on the way here, whatever came after it."""

    async def wait(self, turn: Turn) -> None:
        await turn.take(self._request[CAME_S])
        self._turns.append(turn)

    async def wait_in_front(self) -> web.StreamResponse | None:
        """If the instance lives elsewhere: wait until no other read of it that came here is under way. What is still
        given by another instance of its name is not waited for. If there is no such instance, the answer says it.
        """
        gateway, group = self._gateway, self._request.match_info["group"]
        name = self._request.match_info["instance"]
        while (node := await gateway.coordinator(GROUPS, group)) != gateway.node_id:
            turn = self._reads.turn(group, name)
            turn.look(self._request[CAME_S])
            if turn.locked() and turn.life:
                found = await forward(gateway, node, self._request, b"", {WHICH: ""})
                if found.status != HTTPStatus.OK:
                    return found
                if turn.life not in ("", found.headers.get(LIFE, "")):
                    self._reads.end_turn(group, name, turn)
                    continue
            await turn.take(self._request[CAME_S])
            if self._reads.turn(group, name) is turn:
                turn.life, self._turn = "", turn
                self._turns.append(turn)
                break
            turn.release()
        return None

    async def elsewhere(self) -> web.StreamResponse | None:
        """The answer of the broker where the instance lives. If it was lost on the way here, it is asked for once more:
        the client would go on behind it.
        """
        self._begin()
        named = {READ: self._named, EPOCH: str(self._gateway.epoch)}
        try:
            found = await home(self._gateway, self._request, b"", named)
        except Problem as lost:
            if lost.outcome != "unknown":
                if is_there(self._request):
                    self._forget()
                raise
            self._is_lost = True
            found = await home(self._gateway, self._request, b"", named)
            if found is None or LIFE in found.headers:
                self._is_lost = False  # it was given again
        if found is None or (found.status != HTTPStatus.OK and not self._is_lost):
            self._forget()
        elif self._turn is not None:
            self._turn.life = self._life = found.headers.popall(LIFE, [""])[0]
        return found

    def _begin(self) -> None:
        self._named = self._reads.begin(self._gateway.env.unique().hex()[: READ_CHARACTERS // 2])

    def _forget(self) -> None:
        """Nothing has moved on by the read."""
        self._reads.ended(self._named)
        self._named = ""

    def ended(self, given: Given | None) -> None:
        """The answer was written. None: it was not, and nobody gets it."""
        if given is None or FORWARDED in self._request.headers:  # the broker in front tells of its client
            self._told(given is not None)
            return
        self._given = given
        given.then(self._told, self._pass_on)
        if self._named:
            self._reads.given(self._named, given)
        for each in self._turns:
            each.given[given] = None
        if any(each.is_wanted for each in self._turns):
            given.look_on(0.0)  # for those that have come before

    def _pass_on(self) -> None:
        """Others have their turn, although it is not known whether the client has the answer."""
        assert self._given is not None
        if self.instance is not None:
            self._begin()
            self._reads.given(self._named, self._given)
            gateway = self._gateway
            begins_max = gateway.instances.begins_max
            self.instance.passes_on(self._named, gateway.node_id, gateway.epoch, begins_max)
        self._release()

    def _told(self, is_taken: bool) -> None:
        if self._given is not None:
            for each in self._turns:
                each.given.pop(self._given, None)
        if self.instance is not None:
            if not self._named:
                self.instance.ended(is_taken=is_taken)
            elif not is_taken:
                self.instance.lost(self._named, self._gateway.node_id)
            else:
                self.instance.reads.pop(self._named, None)
        elif self._named and (self._is_lost or not is_taken):
            self._gateway.env.tasks.spawn(f"an answer by HTTP was lost ({self._named})", self._tell_lost())
            return
        self._end()

    def _end(self) -> None:
        self._reads.ended(self._named)
        self._release()

    def _release(self) -> None:
        if self._holds:
            self._holds = False
            for each in self._turns:
                each.release()

    async def _tell_lost(self) -> None:
        try:
            await self._tell_home()
        finally:
            self._end()

    async def _tell_home(self) -> None:
        """Tell the broker where the instance lives, once more while that fails: what breaks an answer between brokers
        lasts for a while. If the instance is not there, it may live where the group was coordinated before, and be
        asked for there again: then it asks what was lost.
        """
        gateway, request = self._gateway, self._request
        group = request.match_info["group"]
        now_s, pause_s = asyncio.get_running_loop().time, PAUSE_S
        deadline_s = now_s() + TIMEOUT_S
        why: object = None
        while True:
            try:
                node = await gateway.coordinator(GROUPS, group)
                if node == gateway.node_id:
                    self._reads.is_lost(self._named)
                    return
                headers = {FORWARDED: str(gateway.node_id), LOST: self._named, LIFE: self._life}
                async with gateway.http().get(url_of(gateway, node, request.path_qs), headers=headers) as answer:
                    if answer.status == HTTPStatus.NOT_FOUND:
                        self._reads.is_lost(self._named)
                    if answer.status in (HTTPStatus.OK, HTTPStatus.NOT_FOUND):
                        return
                    why = answer.status
            except (Problem, ClientFailure, ClientError, OSError) as failure:  # `TimeoutError` is an OSError
                why = failure
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await gateway.closing.wait()
            if gateway.closing.is_set() or now_s() > deadline_s:
                break
            pause_s = min(2 * pause_s, LOST_PAUSE_S)
        self._reads.is_lost(self._named)
        instance = request.match_info["instance"]
        logger.warning("consumer instance %s of group %s has moved on by a lost answer: %s", instance, group, why)


def _accepted(request: web.Request) -> Form | None:
    """The form that the client prefers; None: a form that needs a schema registry."""
    accepted = []
    for part in request.headers.get("Accept", "*/*").lower().split(","):
        media, *parameters = (each.strip() for each in part.split(";"))
        quality = next((each[2:] for each in parameters if each.startswith("q=")), "1")
        try:
            accepted.append((float(quality), media.count("*") == 0, media))
        except ValueError:
            raise InstanceProblem("malformed", 400, "the Accept header can't be read") from None
    for _, _, media in sorted(accepted, key=lambda each: each[:2], reverse=True):
        if media in ("*/*", "application/*", MEDIA, MEDIA_OF[Form.BINARY]):
            return Form.BINARY
        if media == MEDIA_OF[Form.JSON]:
            return Form.JSON
        if media in WITH_SCHEMAS:
            return None
    raise InstanceProblem("not-acceptable", 406, "HTTP 406 Not Acceptable")


# -- offsets


async def commit(gateway: Gateway, request: web.Request) -> web.StreamResponse:
    body = await _body(request)
    wanted = _read(body, _offsets) if body else None
    if (elsewhere := await home(gateway, request, body)) is not None:
        return elsewhere
    instance = _instance(gateway, request)
    if wanted is None:
        await gateway.instances.commit_all(instance)
        return _answer([])
    offsets = {}
    for each in wanted.offsets:
        partition = TopicPartition(each.topic, each.partition)
        _look_up(gateway, partition)
        offsets[partition] = (
            each.offset + 1,
            each.metadata,
        )  # the request names the last record that is done, the group's offset is the next one
    await gateway.instances.commit(instance, offsets)
    return _answer([])


def _look_up(gateway: Gateway, partition: TopicPartition) -> None:
    if partition.partition not in gateway.topic(partition.topic).partitions:
        raise InstanceProblem("unknown-topic", 40402, "Partition not found.")


async def committed(gateway: Gateway, request: web.Request) -> web.StreamResponse:
    body = await _body(request)
    if not body:
        raise InstanceProblem("unknown-topic", 40402, "Partition not found.")
    partitions = _named(_read(body, _partitions).partitions)
    if (elsewhere := await home(gateway, request, body)) is not None:
        return elsewhere
    instance = _instance(gateway, request)
    for each in partitions:
        _look_up(gateway, each)
    found = await committed_by(gateway, request, instance.group, partitions) if partitions else {}
    offsets = [OffsetV2(*each, offset, metadata or "") for each, (offset, metadata) in found.items()]
    return _answer(OffsetsV2(offsets))


async def seek(gateway: Gateway, request: web.Request) -> web.StreamResponse:
    body = await _body(request)
    wanted = _read(body, _offsets).offsets
    if (elsewhere := await home(gateway, request, body)) is not None:
        return elsewhere
    offsets = {TopicPartition(each.topic, each.partition): each.offset for each in wanted}
    await gateway.instances.seek(_instance(gateway, request), offsets)
    return _done()


async def seek_to_beginning(gateway: Gateway, request: web.Request) -> web.StreamResponse:
    return await _seek_to(gateway, request, EARLIEST)


async def seek_to_end(gateway: Gateway, request: web.Request) -> web.StreamResponse:
    return await _seek_to(gateway, request, LATEST)


async def _seek_to(gateway: Gateway, request: web.Request, where: int) -> web.StreamResponse:
    body = await _body(request)
    partitions = _named(_read(body, _partitions).partitions)
    if (elsewhere := await home(gateway, request, body)) is not None:
        return elsewhere
    await gateway.instances.seek(_instance(gateway, request), dict.fromkeys(partitions, where))
    return _done()


_GROUP = "/consumers/{group}"
_ONE = _GROUP + "/instances/{instance}"


_route = partial(
    Route,
    tag="consumers of version 2",
    answer_media=MEDIA,
    problems=(404, 409, 415, 422, 429, 503),
    refuse=refuse,
    refusal=(MEDIA, ErrorV2),
)
_with_body = partial(_route, body_media=(MEDIA,))
ROUTES = (
    _with_body(
        "POST",
        _GROUP,
        make,
        "Make a consumer instance, as Confluent's REST Proxy does: a consumer with a "
        "name. `format` is binary or json; `fetch.min.bytes` and `consumer.request.timeout.ms` say how long it waits.",
        body=NewInstance,
        answer=Made,
    ),
    _route("DELETE", _ONE, delete, "Delete an instance: its group goes on without it at once.", status=204),
    _with_body(
        "POST",
        _ONE + "/subscription",
        subscribe,
        "Subscribe to topics, or to all that match a pattern: it reads what its group gives it.",
        body=SubscriptionIn,
        status=204,
    ),
    _route(
        "GET",
        _ONE + "/subscription",
        subscription,
        "What an instance is subscribed to.",
        answer=Subscribed,
        tells_of_client=True,
    ),
    _route(
        "DELETE", _ONE + "/subscription", unsubscribe, "Subscribe to nothing, and assign nothing by hand.", status=204
    ),
    _with_body(
        "POST",
        _ONE + "/assignments",
        assign,
        "Assign partitions by hand, beside the group.",
        body=PartitionsV2,
        status=204,
    ),
    _route(
        "GET",
        _ONE + "/assignments",
        assignment,
        "The partitions an instance reads.",
        answer=PartitionsV2,
        tells_of_client=True,
    ),
    _route(
        "GET",
        _ONE + "/records",
        records,
        "What there is, in the form that the instance was made for and `Accept` "
        "names: `application/vnd.kafka.binary.v2+json` or `application/vnd.kafka.json.v2+json`.",
        answer=list[RecordV2],
        answer_media=MEDIA_OF[Form.BINARY],
        more_media=(MEDIA_OF[Form.JSON],),
        problems=(400, 404, 406, 409, 416, 503),
        answers_head=False,
        tells_of_client=True,
        parameters=(
            integer(
                "timeout",
                "Milliseconds to wait at most, if that is less than the instance was made for.",
                least=-(2**63),
            ),
            integer("max_bytes", f"About so many bytes of keys and values; at most {PAGE_BYTES_MAX}.", least=-(2**63)),
        ),
    ),
    _with_body(
        "POST",
        _ONE + "/offsets",
        commit,
        "Commit what was read, or these: each is the offset of the last record that is done with.",
        body=OffsetsV2,
        answer=list[OffsetV2],
    ),
    _with_body(
        "GET",
        _ONE + "/offsets",
        committed,
        "The group's committed offsets.",
        body=PartitionsV2,
        answer=OffsetsV2,
        tells_of_client=True,
    ),
    _with_body(
        "POST",
        _ONE + "/positions",
        seek,
        "Read on elsewhere. A topic that is not, or not any more, the one that the group names is not found (404), "
        "and nothing has moved then.",
        body=OffsetsV2,
        status=204,
    ),
    _with_body(
        "POST",
        _ONE + "/positions/beginning",
        seek_to_beginning,
        "Read on at the first record.",
        body=PartitionsV2,
        status=204,
    ),
    _with_body(
        "POST", _ONE + "/positions/end", seek_to_end, "Read on behind the last record.", body=PartitionsV2, status=204
    ),
)

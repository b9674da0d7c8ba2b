"""ACLs, quotas and users of a broker that has none of them: tools ask for them all the same."""

from __future__ import annotations

from service.wire.messages import (
    AclCreation,
    ComponentData,
    CreateAclsRequest,
    DeleteAclsFilter,
    DeleteAclsRequest,
    DescribeAclsRequest,
    DescribeClientQuotasRequest,
    DescribeUserScramCredentialsRequest,
    UserName,
)
from service.wire.messages.versions import ApiKey
from tests.conformance.talk import Talk, stable_versions

ANY, LITERAL, TOPIC, READ, ALLOW = 1, 3, 2, 3, 3


def acls_without_an_authorizer(talk: Talk) -> None:
    for version in stable_versions(ApiKey.DESCRIBE_ACLS):
        everything = DescribeAclsRequest(ANY, None, ANY if version else LITERAL, None, None, ANY, ANY)
        talk.ask(everything, version)
    allowed = AclCreation(TOPIC, "a-topic", LITERAL, "User:somebody", "*", READ, ALLOW)
    for version in stable_versions(ApiKey.CREATE_ACLS):
        talk.ask(CreateAclsRequest([allowed, allowed]), version)
    wanted = DeleteAclsFilter(TOPIC, "a-topic", LITERAL, None, None, ANY, ANY)
    for version in stable_versions(ApiKey.DELETE_ACLS):
        talk.ask(DeleteAclsRequest([wanted]), version)
    talk.ask(CreateAclsRequest([]), why="none")
    talk.ask(DeleteAclsRequest([]), why="none")


def quotas_of_nobody(talk: Talk) -> None:
    for version in stable_versions(ApiKey.DESCRIBE_CLIENT_QUOTAS):
        talk.ask(DescribeClientQuotasRequest([]), version, why="all")
        talk.ask(
            DescribeClientQuotasRequest([ComponentData("client-id", 2, None)], strict=True), version, why="clients"
        )


def users_without_credentials(talk: Talk) -> None:
    talk.ask(DescribeUserScramCredentialsRequest(None), why="all")
    talk.ask(DescribeUserScramCredentialsRequest([]), why="no names")
    talk.ask(DescribeUserScramCredentialsRequest([UserName("nobody")]), why="one")
    talk.ask(DescribeUserScramCredentialsRequest([UserName("nobody"), UserName("nobody")]), why="one twice")
    talk.ask(DescribeUserScramCredentialsRequest([UserName("")]), why="no name")


CONVERSATIONS = (acls_without_an_authorizer, quotas_of_nobody, users_without_credentials)

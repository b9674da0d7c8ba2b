"""CreateAcls, versions 1 to 3: refused one by one, because there is no authorizer yet."""

from service.api.describe_acls import NO_AUTHORIZER
from service.broker.session import Session
from service.wire.codec import RequestHeader
from service.wire.error_codes import ErrorCode
from service.wire.messages import AclCreationResult, CreateAclsRequest, CreateAclsResponse


def handle(session: Session, header: RequestHeader, request: CreateAclsRequest) -> CreateAclsResponse:
    result = AclCreationResult(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)
    return CreateAclsResponse(results=[result] * len(request.creations))

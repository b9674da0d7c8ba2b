"""DeleteAcls, versions 1 to 3: refused filter by filter, because there is no authorizer yet."""

from service.api.describe_acls import NO_AUTHORIZER
from service.broker.session import Session
from service.wire.codec import RequestHeader
from service.wire.error_codes import ErrorCode
from service.wire.messages import DeleteAclsFilterResult, DeleteAclsRequest, DeleteAclsResponse


def handle(session: Session, header: RequestHeader, request: DeleteAclsRequest) -> DeleteAclsResponse:
    result = DeleteAclsFilterResult(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)
    return DeleteAclsResponse(filter_results=[result] * len(request.filters))

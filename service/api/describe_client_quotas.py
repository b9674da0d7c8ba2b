"""DescribeClientQuotas, versions 0 and 1: there are no quotas yet."""

from service.broker.session import Session
from service.wire.codec import RequestHeader
from service.wire.messages import DescribeClientQuotasRequest, DescribeClientQuotasResponse


def handle(
    session: Session, header: RequestHeader, request: DescribeClientQuotasRequest
) -> DescribeClientQuotasResponse:
    return DescribeClientQuotasResponse()

"""What can go wrong, each with a name. `retriable` says whether the same thing may work if it is tried again."""

from kio.schema.errors import ErrorCode


class OncelogError(Exception):
    """Everything that this package raises on purpose."""

    retriable = False


class OptionError(OncelogError, ValueError):
    """An option that can't be honoured; the message begins with its name."""

    def __init__(self, option: str, problem: str) -> None:
        super().__init__(option, problem)
        self.option = option
        self.problem = problem

    def __str__(self) -> str:
        return f"option {self.option!r}: {self.problem}"


class SchemaError(OncelogError, ValueError):
    """Columns that can't be written, or are not what is read: the message names them."""


class BrokerError(OncelogError):
    """The broker answered with an error code."""

    def __init__(self, code: ErrorCode, doing: str, detail: str | None = None) -> None:
        super().__init__(code, doing, detail)
        self.code = code
        self.doing = doing
        self.detail = detail
        self.retriable = code.retriable

    def __str__(self) -> str:
        return f"{self.doing}: the broker answered {self.code.name.upper()} ({int(self.code)})" + (
            f": {self.detail}" if self.detail else ""
        )


class ConnectionLost(OncelogError):
    """No connection, or it ended, or it stayed silent too long. Whether the request was carried out is unknown."""

    retriable = True


class UnsupportedByBroker(OncelogError):
    """The broker does not offer a request that is needed."""


class DataLost(OncelogError):
    """Offsets that were to be read are no longer in the log."""


class TopicMadeAnew(OncelogError):
    """Another topic stands under the name of the one that was meant."""

    def __init__(self, message: str, *, retriable: bool = False) -> None:
        super().__init__(message)
        self.retriable = retriable


class TopicGone(OncelogError):
    """Partitions that were read so far are not there, and may come back: brokers that just started may not know them
    yet."""

    retriable = True


class CorruptBatch(OncelogError):
    """A record batch whose checksum or structure is wrong."""


def check(code: ErrorCode, doing: str, detail: str | None = None) -> None:
    """Raise unless `code` is 0."""
    if code:
        raise BrokerError(code, doing, detail)

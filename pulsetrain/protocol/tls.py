"""How clients of a hub check its certificate, and what they say of one that is wrong."""

from __future__ import annotations

import ssl
from pathlib import Path

from pulsetrain.core.errors import UsageError

_EXPIRED, _NOT_YET, _OTHER_HOST, _OTHER_ADDRESS = 10, 9, 62, 64
_UNKNOWN_CA = (2, 18, 19, 20, 21)
_NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE")
_OFTEN = "give its CA certificate with PULSETRAIN_CA"


def client_context(ca: str = "") -> ssl.SSLContext:
    """What checks the certificate of a hub: the CA of the file `ca`, those of the system where it is "".

    The file is read anew each time. Raises `UsageError` for one that cannot be used.
    """
    if not ca:
        return ssl.create_default_context()
    path = Path(ca).expanduser()
    try:
        return ssl.create_default_context(cafile=str(path))
    except ssl.SSLError as error:
        raise UsageError(f"CA certificate {path}: it holds no certificate in PEM form") from error
    except OSError as error:
        raise UsageError(f"CA certificate {path}: {error.strerror}") from error


def refusal(error: BaseException) -> str:
    """What is wrong with the certificate or the TLS of a hub, "" where `error` says nothing of that.

    The library's own error is looked for in what `error` was made from.
    """
    found = _cause(error)
    if isinstance(found, ssl.SSLCertVerificationError):
        return _of_certificate(found)
    if found is not None and getattr(found, "reason", "") in _NO_TLS:
        return "it does not speak TLS: its address begins with http://"
    return ""


def _of_certificate(error: ssl.SSLCertVerificationError) -> str:
    code = error.verify_code
    if code == _EXPIRED:
        return "its certificate has expired: issue it anew"
    if code == _NOT_YET:
        return "its certificate is not valid yet: compare the clocks of both machines"
    if code in (_OTHER_HOST, _OTHER_ADDRESS):
        return f"its certificate is for another host: {error.verify_message.rstrip('.')}"
    if code in _UNKNOWN_CA:
        return f"its certificate is by a CA that is not known here ({error.verify_message}): {_OFTEN}"
    return f"its certificate is refused: {error.verify_message}"


def _cause(error: BaseException | None) -> ssl.SSLError | None:
    """The error of the TLS library among the arguments and causes of `error`."""
    seen: list[BaseException] = []
    todo = [error]
    while todo:
        each = todo.pop()
        if each is None or each in seen:
            continue
        if isinstance(each, ssl.SSLError):
            return each
        seen.append(each)
        inner = [arg for arg in (*each.args, getattr(each, "reason", None)) if isinstance(arg, BaseException)]
        todo += [each.__cause__, each.__context__, *inner]
    return None

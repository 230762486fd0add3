"""What OpenSSL says when a handshake fails, in words that say what to do.

Why words of our own: "tlsv1 alert unknown ca" is the same event as "unable to get local issuer certificate" seen from
the other end, and neither names a file or a setting. Both ends of a connection must be able to act on what they read.

Rules: certificates are judged by OpenSSL's numbers (X509_V_ERR_*), everything else by the names in its messages, which
are the same from OpenSSL 1.1.1 on; what isn't known here is passed on as it is. What came from the other end is shown
without control characters.
"""

from __future__ import annotations

import ssl

from spindle.errors import AccessDenied, ConnectionEnded, ProtocolMismatch, SpindleError
from spindle.security.identity import SECRET

# X509_V_ERR_* of x509_vfy.h
NOT_YET_VALID, HAS_EXPIRED, WRONG_PURPOSE = 9, 10, 26
FOREIGN = {2, 7, 18, 19, 20, 21}  # not signed by any of the authorities

CLOCKS = "compare the clocks of both hosts"
LARGE_PACKETS = "try `ping -M do -s 1472` from host to host, and make the MTU of both ends what passes"
SAME_SECRET = "[network] secret must be the same file on all nodes, and none may have certificates instead"


def unverified(error: ssl.SSLCertVerificationError, whose: str, mode: str) -> str:
    """Why a certificate is refused. `whose` is "it" or "the certificate of ..."."""
    code = error.verify_code
    if code in FOREIGN and mode == SECRET:
        return f"{whose} was made from another secret: {SAME_SECRET}"
    if code in FOREIGN:
        return (f"{whose} is not signed by any authority in [network] authority; all nodes need certificates of the "
                "same authority, or a file with both while one replaces the other")
    if code == HAS_EXPIRED:
        return f"{whose} has expired; make a new one (`spindle keys`), or {CLOCKS}"
    if code == NOT_YET_VALID:
        return f"{whose} is not valid yet; {CLOCKS}"
    if code == WRONG_PURPOSE:
        return (f"{whose} may not be used for this: an application's can't be a node's, and a node's must be for both "
                "clientAuth and serverAuth")
    return f"{whose} is refused: {error.verify_message}"


def explained(error: ssl.SSLError, label: str, mode: str) -> SpindleError:
    """The error for a handshake with `label` that failed."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return AccessDenied(f"{label} is refused: {unverified(error, 'its certificate', mode)}")
    name = _name(error)
    if "ALERT" in name:
        return _alerted(name, error, label, mode)
    if "PEER_DID_NOT_RETURN_A_CERTIFICATE" in name:
        return AccessDenied(f"{label} is refused: it has no certificate; a node needs [network] settings like those of "
                            "the others")
    if "UNSUPPORTED_PROTOCOL" in name or "NO_SHARED_CIPHER" in name or "NO_PROTOCOLS_AVAILABLE" in name:
        return ProtocolMismatch(f"{label} is refused: it does not speak TLS 1.3, or shares no cipher with this node; "
                                "nothing older is allowed")
    return ProtocolMismatch(f"{label} does not speak TLS as nodes do ({_text(error)}): it is another program, or a "
                            "node without the keys in [network] that this one has")


def _alerted(name: str, error: ssl.SSLError, label: str, mode: str) -> SpindleError:
    """The other end has refused us."""
    what = "this node" if mode == SECRET else "this node's certificate"
    if "PROTOCOL_VERSION" in name:
        return ProtocolMismatch(f"{label} refuses this node: it does not speak TLS 1.3, and nothing older is allowed")
    if "EXPIRED" in name:
        return AccessDenied(f"{label} refuses {what}: to its mind it has expired; make a new one (`spindle keys`), or "
                            f"{CLOCKS}")
    if "CERTIFICATE_REQUIRED" in name:
        return AccessDenied(f"{label} refuses this node: it wants a certificate")
    if "UNSUPPORTED_CERTIFICATE" in name:
        return AccessDenied(f"{label} refuses {what}: it may not be used for this; an application's can't be a node's")
    if "UNKNOWN_CA" in name or "DECRYPT_ERROR" in name:
        if mode == SECRET:
            return AccessDenied(f"{label} refuses {what}: it has another secret; {SAME_SECRET}")
        return AccessDenied(f"{label} refuses {what}: its [network] authority doesn't have the one that signed it")
    if "BAD_CERTIFICATE" in name:
        return AccessDenied(f"{label} refuses {what}: to its mind it is not valid yet, or malformed; {CLOCKS}, and see "
                            f"the log of {label}")
    return ProtocolMismatch(f"{label} ended the TLS handshake ({_text(error)}); see its log")


def undecryptable(error: ssl.SSLError) -> str:
    """Why a connection breaks after its handshake."""
    if "ALERT" in _name(error):
        return f"the other end has broken the encrypted connection off ({_text(error)}); see its log"
    return f"what came can't be decrypted ({_text(error)}): it was changed on the way, or the other end is defective"


def cut(label: str, why: str = "") -> ConnectionEnded:
    """The connection ended before the handshake was done."""
    return ConnectionEnded(f"{label} closed the connection in the middle of the TLS handshake{why and f' ({why})'}; "
                           "see its log, and whether it is a node with keys in [network] like this one", clean=False)


def late(label: str, timeout_s: float) -> ConnectionEnded:
    """The other end took too long. It may be worth another attempt, as with one that has gone. The connection itself
    needs small packets only, so a handshake is the first to hang where large ones are lost."""
    return ConnectionEnded(f"{label} did not finish its TLS handshake within {timeout_s:g} s; is it a node, and does "
                           f"it hang? Or do large packets get lost on the way ({LARGE_PACKETS})?", clean=False)


def printable(text: str) -> str:
    """Text of the other end, harmless in a log."""
    return "".join(one if one.isprintable() else " " for one in text)


def _name(error: ssl.SSLError) -> str:
    return f"{error.reason or ''} {error}".upper().replace(" ", "_")


def _text(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).replace("_", " ").lower()

"""A Flower node that runs the app installed on its own machine, and takes no code from the SuperLink.

    stock SuperNode of Flower 1.41              this node
    runs the app that the SuperLink ships       runs the app that it was started with
    starts a process for every message          is one process
    polls for messages every three seconds      polls more often while messages come

An attacker that controls the SuperLink then controls messages, but no code on the node. The node's key is
registered and TLS is used as for a stock one. The Fleet API is internal to Flower, so the node starts only
with the Flower version that it was written for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib.metadata import version
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Final

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree, push_objects
from flwr.supercore.retry import RetryInvoker, constant
from flwr.supercore.run import RunNotRunningException
from flwr.supernode.fleet_http_connection import http_request_response
from httpx import ConnectTimeout

from securefl.core.errors import ConfigError, RemoteProtocolError
from securefl.core.logs import logger
from securefl.flower.exchange import CODE, UNANSWERED

FLOWER: Final = "1.41.0"
"""The version of Flower whose Fleet API this node speaks."""
_SHORTEST, _LONGEST, _SHARE = 0.1, 3.0, 0.1
_log = logger(__name__)
Config = Mapping[str, bool | int | float | str]


def serve_node(
    app: ClientApp,
    *,
    superlink: str,
    root_certificates: Path,
    key: Path,
    node_config: Config,
    run_config: Config | None = None,
    ready: Callable[[], None] = lambda: None,
    stop: Callable[[], bool] = lambda: False,
) -> None:
    """Run a node: answer the SuperLink's messages with this app, one at a time, until `stop` returns True.

        >>> from pathlib import Path
        >>> from flwr.clientapp import ClientApp
        >>> from securefl.errors import ConfigError
        >>> from securefl.flower import serve_node
        >>> files = {"root_certificates": Path("ca.pem"), "key": Path("/nowhere/key")}
        >>> try: serve_node(ClientApp(), superlink="127.0.0.1:9092", node_config={}, **files)
        ... except ConfigError as error: print(str(error)[:52])
        Expected a node's private key in /nowhere/key, got n

    Args:
        superlink: host:port.
        root_certificates: of the SuperLink's certificate. Without TLS the node does not connect.
        key: the node's registered private key, as `ssh-keygen -t ecdsa -b 384` makes it.
        node_config, run_config: the configurations in the app's context. Both are this node's own. The
            configuration that `flwr run` sends is ignored.
        ready: called once the SuperLink knows the node.
        stop: called between messages.

    After an error with a message, the server gets one constant text or nothing.

    Raises:
        ConfigError: Flower has another version, or the key is missing or of another kind.
        RemoteProtocolError: the SuperLink ended the connection.
    """
    if (found := version("flwr")) != FLOWER:
        raise ConfigError(
            f"Expected flwr {FLOWER}, whose Fleet API this node speaks, got {found}. Install flwr {FLOWER}, "
            "or start Flower's own flower-supernode."
        )
    private = _private(key)
    with http_request_response(
        superlink, False, str(root_certificates), (private, private.public_key())
    ) as link:
        node = Node(app, link, dict(node_config), dict(run_config or {}))
        ready()
        last = monotonic()
        while not stop():
            if node.answer():
                last = monotonic()
            else:
                sleep(pause(monotonic() - last))
        return
    # Flower's connection logs the error that ended it, but does not return it.
    raise RemoteProtocolError(
        f"Expected replies of the SuperLink at {superlink}, got an error; see the log. Start the node again.",
        sender="superlink",
    )


def pause(idle: float) -> float:
    """Seconds until the next poll, `idle` seconds after the last message. It adds a tenth to a wait."""
    return min(_LONGEST, max(_SHORTEST, _SHARE * idle))


def _private(key: Path) -> EllipticCurvePrivateKey:
    try:
        private = load_ssh_private_key(key.read_bytes(), None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"Expected a node's private key in {key}, got none: {error}.") from None
    if not isinstance(private, EllipticCurvePrivateKey):
        raise ConfigError(
            f"Expected an ECDSA key in {key}, got a {type(private).__name__}. Make one: ssh-keygen -t ecdsa "
            "-b 384."
        )
    return private


class Node:
    """One app behind a connection to the SuperLink, which Flower gives as eight functions."""

    def __init__(
        self, app: ClientApp, link: tuple[Any, ...], node_config: dict[str, Any], run_config: dict[str, Any]
    ) -> None:
        self._app, self._node_config, self._run_config = app, node_config, run_config
        self._node, receive, send, _, _, pull, push, confirm = link
        # Each function is one call, of which a handshake that took too long sent nothing. Flower gives up on
        # that alone, and a message would be lost that the app has answered.
        again = RetryInvoker(partial(constant, _SHORTEST), ConnectTimeout, None, None).invoke
        self._receive, self._send, self._pull, self._push, self._confirm = (
            partial(again, call) for call in (receive, send, pull, push, confirm)
        )
        self._context: Context | None = None

    def answer(self) -> bool:
        """Answer one message if there is one. Returns whether there was one."""
        came = self._receive()
        if came is None:
            return False
        bare, tree = came
        run = bare.metadata.run_id
        try:
            message = pull_and_inflate_object_from_tree(
                tree, partial(self._pull, run), partial(self._confirm, run), return_type=Message
            )
            # The encoded message does not contain its id, which the reply must name.
            message.metadata.__dict__["_message_id"] = tree.object_id
            began = monotonic()
            self._sent(self._reply(message, self._of(run)), run, monotonic() - began)
        except RunNotRunningException:  # Flower's, and no subclass of Exception: the run is over
            _log.info("Run %d is over: its message is dropped.", run)
        except Exception as error:
            _log.warning("A message of run %d was not received or sent whole: %s", run, error)
        return True

    def _of(self, run: int) -> Context:
        """The app's context of a run. Its state is kept between the run's messages."""
        if self._context is None or self._context.run_id != run:
            self._context = Context(run, self._node, self._node_config, RecordDict(), self._run_config)
        return self._context

    def _reply(self, message: Message, context: Context) -> Message:
        try:
            return self._app(message, context)
        except Exception:
            # A stock node would send the exception's text to the server, and the text may reveal records.
            _log.exception("The app failed.")
            return Message(Error(CODE, UNANSWERED), reply_to=message)

    def _sent(self, reply: Message, run: int, took: float) -> None:
        reply.metadata.__dict__["_message_id"] = reply.object_id
        with no_object_id_recompute():
            wanted, session = self._send(reply, get_object_tree(reply), took)
            parts = get_all_nested_objects(reply)
            push_objects(parts, partial(self._push, run, session), object_ids_to_push=wanted)

"""The public side: the receiver and its secret rotations behind the public listener."""

import socket

from relay.config import Config
from relay.core.acceptance import AcceptanceHealth, Backpressure
from relay.core.clock import Clock
from relay.core.large_bodies import BodyWorker
from relay.delivery.supervisor import DispatcherSupervisor
from relay.receiver.app import Receiver
from relay.receiver.intake import Intake
from relay.receiver.reporter import RequestReporter
from relay.receiver.secret_rotation import SecretRotations
from relay.server.connection_limit import limited, public_bytes, public_total
from relay.server.listener import Listener
from relay.store import Store
from relay.telemetry.activity_stream import ActivityStream
from relay.telemetry.metrics import Metrics
from relay.telemetry.traffic import Traffic


class PublicSide:
    """Takes the senders' requests in."""

    def __init__(
        self,
        config: Config,
        store: Store,
        *,
        supervisor: DispatcherSupervisor,
        backpressure: Backpressure,
        metrics: Metrics,
        activity: ActivityStream,
        traffic: Traffic,
        health: AcceptanceHealth,
        clock: Clock,
        files: int,
        handed_over: socket.socket | None,
    ) -> None:
        """`files` is the process's limit of open files."""
        reporter = RequestReporter(
            metrics=metrics, activity=activity, traffic=traffic, health=health, clock=clock
        )
        worker = BodyWorker("requests")
        self.intake = Intake(
            store,
            config.routes,
            worker=worker,
            reporter=reporter,
            backpressure=backpressure,
            clock=clock,
            wake=supervisor.wake,
            offer=supervisor.offer,
        )
        self.rotations = SecretRotations(
            store.quarantine,
            config.sources,
            intake=self.intake,
            worker=worker,
            metrics=metrics,
            clock=clock,
        )
        self.receiver = Receiver(
            config.sources,
            intake=self.intake,
            worker=worker,
            rotations=self.rotations,
            limits=config.server,
            reporter=reporter,
            clock=clock,
        )
        self._limit = limited(
            "public",
            public_total(files),
            memory=public_bytes(config.server.max_body),
            is_trusted=self.receiver.trusts,
            metrics=metrics,
            clock=clock,
        )
        self.listener = Listener(
            self.receiver,
            config.server.listen,
            grace=config.server.drain_timeout,
            limit=self._limit,
            handed_over=handed_over,
            not_http=reporter.not_http,
        )

    def adopt(self, config: Config) -> None:
        self.receiver.adopt(config.sources, config.routes, limits=config.server)
        self.rotations.adopt(config.sources)
        self._limit.memory.total = public_bytes(config.server.max_body)
        self.listener.grace = config.server.drain_timeout

    async def drain(self) -> None:
        """Stop accepting connections, answer the requests that have arrived, and close."""
        await self.listener.retire()
        self.receiver.draining = True
        await self.listener.stop()

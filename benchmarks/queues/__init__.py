"""The brokers that can be measured, by their sinks' types."""

from benchmarks.queue import Broker
from benchmarks.queues.amqp import Amqp
from benchmarks.queues.kafka import Kafka
from benchmarks.queues.mqtt import Mqtt
from benchmarks.queues.nats import Nats
from benchmarks.queues.pubsub import Pubsub
from benchmarks.queues.redis import RedisStreams
from benchmarks.queues.sqs import Sqs

BROKERS: dict[str, type[Broker]] = {
    each.name: each for each in (Amqp, Kafka, Mqtt, Nats, Pubsub, RedisStreams, Sqs)
}

"""Kafka's hash of a record's key, as `org.apache.kafka.common.utils.Utils.murmur2` has it."""

_MASK = 0xFFFFFFFF
_FACTOR = 0x5BD1E995


def murmur2(data: bytes) -> int:
    hashed = 0x9747B28C ^ len(data)
    whole = len(data) & ~3
    for start in range(0, whole, 4):
        word = int.from_bytes(data[start : start + 4], "little") * _FACTOR & _MASK
        word = (word ^ word >> 24) * _FACTOR & _MASK
        hashed = (hashed * _FACTOR & _MASK) ^ word
    if rest := data[whole:]:
        hashed = (hashed ^ int.from_bytes(rest, "little")) * _FACTOR & _MASK
    hashed = (hashed ^ hashed >> 13) * _FACTOR & _MASK
    return hashed ^ hashed >> 15

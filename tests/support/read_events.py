"""Prints the scalars of a TensorBoard event file, one JSON array [step, wall time, {tag: value}] for each event.

Reads the format by itself, so that it agrees with the writer only where both agree with TensorFlow. Checks every
checksum; ends with a sentence and status 1 where the file is not what it should be.
"""
import json
import struct
import sys


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def check(data, stored, what):
    crc = crc32c(data)
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    if masked != stored:
        sys.exit("the checksum of %s is %08x, stored is %08x" % (what, masked, stored))


def records(data):
    at = 0
    while at < len(data):
        if len(data) < at + 12:
            sys.exit("torn at byte %d" % at)
        length, length_crc = struct.unpack_from("<QI", data, at)
        check(data[at:at + 8], length_crc, "the length at byte %d" % at)
        if len(data) < at + 12 + length + 4:
            sys.exit("torn at byte %d" % at)
        event = data[at + 12:at + 12 + length]
        check(event, struct.unpack_from("<I", data, at + 12 + length)[0], "the event at byte %d" % at)
        at += 16 + length
        yield event


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at


def fields(data):
    """(number, value) of each field of a protobuf message."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = varint(data, at)
        elif kind == 1:
            value, at = struct.unpack_from("<d", data, at)[0], at + 8
        elif kind == 2:
            length, at = varint(data, at)
            value, at = data[at:at + length], at + length
        elif kind == 5:
            value, at = struct.unpack_from("<f", data, at)[0], at + 4
        else:
            sys.exit("wire type %d" % kind)
        yield key >> 3, value


# The field numbers of Event, Summary and Summary.Value in TensorFlow's event.proto and summary.proto.
WALL_TIME, STEP, FILE_VERSION, SUMMARY = 1, 2, 3, 5
VALUE = 1
TAG, SIMPLE_VALUE = 1, 2


def main():
    with open(sys.argv[1], "rb") as file:
        events = [dict(fields(record)) for record in records(file.read())]
    if not events or events[0].get(FILE_VERSION) != b"brain.Event:2":
        sys.exit("the first event does not name the version")
    for event in events[1:]:
        scalars = {}
        for number, value in fields(event[SUMMARY]):
            assert number == VALUE
            entry = dict(fields(value))
            scalars[entry[TAG].decode()] = entry.get(SIMPLE_VALUE)
        print(json.dumps([event.get(STEP, 0), event[WALL_TIME], scalars]))


main()

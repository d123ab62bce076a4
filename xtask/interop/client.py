"""Talks to a router as the platform's clients do, with the official gRPC implementation.

Called by `cargo xtask interop`, which starts the router and generates the message classes:

    python client.py ADDRESS CERTIFICATE_DIRECTORY

Each check is a function; the last line counts them.
"""

import sys
import threading
import time
import traceback

import grpc

import egress_pb2
import envelope_pb2
import ingress_pb2
import plumbing_pb2

PATIENCE = 30
TEN_MIB = 10 * 1024 * 1024


def credentials(directory):
    def read(name):
        with open(f"{directory}/{name}", "rb") as file:
            return file.read()

    return grpc.ssl_channel_credentials(
        root_certificates=read("ca.crt"),
        private_key=read("reverselogproxy.key"),
        certificate_chain=read("reverselogproxy.crt"),
    )


def connect(address, directory, *options):
    """A connection of its own, with the settings of the reverse log proxy."""
    return grpc.secure_channel(
        address,
        credentials(directory),
        options=[
            ("grpc.ssl_target_name_override", "doppler"),
            ("grpc.max_receive_message_length", TEN_MIB),
            ("grpc.max_send_message_length", -1),
            ("grpc.use_local_subchannel_pool", 1),
            *options,
        ],
    )


class Stubs:
    def __init__(self, channel):
        def method(kind, path, request, response):
            return getattr(channel, kind)(
                path,
                request_serializer=request.SerializeToString,
                response_deserializer=response.FromString,
            )

        self.batch_sender = method(
            "stream_unary",
            "/loggregator.v2.Ingress/BatchSender",
            envelope_pb2.EnvelopeBatch,
            ingress_pb2.BatchSenderResponse,
        )
        self.sender = method(
            "stream_unary",
            "/loggregator.v2.Ingress/Sender",
            envelope_pb2.Envelope,
            ingress_pb2.IngressResponse,
        )
        self.send = method(
            "unary_unary",
            "/loggregator.v2.Ingress/Send",
            envelope_pb2.EnvelopeBatch,
            ingress_pb2.SendResponse,
        )
        self.batched_receiver = method(
            "unary_stream",
            "/loggregator.v2.Egress/BatchedReceiver",
            egress_pb2.EgressBatchRequest,
            envelope_pb2.EnvelopeBatch,
        )
        self.receiver = method(
            "unary_stream",
            "/loggregator.v2.Egress/Receiver",
            egress_pb2.EgressRequest,
            envelope_pb2.Envelope,
        )
        self.pusher = method(
            "stream_unary",
            "/plumbing.DopplerIngestor/Pusher",
            plumbing_pb2.EnvelopeData,
            plumbing_pb2.PushResponse,
        )
        self.subscribe = method(
            "unary_stream",
            "/plumbing.Doppler/Subscribe",
            plumbing_pb2.SubscriptionRequest,
            plumbing_pb2.Response,
        )
        self.batch_subscribe = method(
            "unary_stream",
            "/plumbing.Doppler/BatchSubscribe",
            plumbing_pb2.SubscriptionRequest,
            plumbing_pb2.BatchResponse,
        )
        self.nothing = method(
            "unary_unary",
            "/loggregator.v2.Ingress/Nothing",
            envelope_pb2.EnvelopeBatch,
            ingress_pb2.SendResponse,
        )


def log(source_id, payload=b"hello"):
    return envelope_pb2.Envelope(
        timestamp=1, source_id=source_id, log=envelope_pb2.Log(payload=payload)
    )


def batch(*envelopes):
    return envelope_pb2.EnvelopeBatch(batch=envelopes)


def logs_of(source_id):
    selector = egress_pb2.Selector(source_id=source_id, log=egress_pb2.LogSelector())
    return egress_pb2.EgressBatchRequest(selectors=[selector])


def open_stream(call):
    """Waits until the router has answered, so that the subscription is there."""
    call.initial_metadata()
    return call


def status_of(call):
    try:
        call()
    except grpc.RpcError as error:
        return error.code()
    return grpc.StatusCode.OK


def check_v2_ingress_and_egress(stubs, new_stubs):
    batches = open_stream(stubs.batched_receiver(logs_of("v2"), timeout=PATIENCE))
    singles = open_stream(
        stubs.receiver(
            egress_pb2.EgressRequest(selectors=logs_of("v2").selectors), timeout=PATIENCE
        )
    )
    sent = [log("v2", b"%d" % number) for number in range(5)]
    # a half-closed stream is answered with OK and an empty response
    stubs.batch_sender(iter([batch(*sent[:3])]), timeout=PATIENCE)
    stubs.sender(iter(sent[3:4]), timeout=PATIENCE)
    stubs.send(batch(sent[4], log("another source")), timeout=PATIENCE)

    received = []
    while len(received) < len(sent):
        received.extend(next(batches).batch)
    assert received == sent, received
    assert [next(singles) for _ in sent] == sent


def check_v1_ingress_and_egress(stubs, new_stubs):
    request = plumbing_pb2.SubscriptionRequest(
        filter=plumbing_pb2.Filter(appID="v1", log=plumbing_pb2.LogFilter())
    )
    batches = open_stream(stubs.batch_subscribe(request, timeout=PATIENCE))
    singles = open_stream(stubs.subscribe(request, timeout=PATIENCE))
    v2 = open_stream(stubs.batched_receiver(logs_of("v1"), timeout=PATIENCE))

    # origin "o", a log message "hi" of application "v1", type OUT, timestamp 1
    message = b"\x0a\x02hi\x10\x01\x18\x01\x22\x02v1"
    payload = b"\x0a\x01o\x10\x05\x42" + bytes([len(message)]) + message
    pushed = [
        plumbing_pb2.EnvelopeData(payload=payload),
        # not an envelope: it costs itself only
        plumbing_pb2.EnvelopeData(payload=b"\xff\xff"),
        plumbing_pb2.EnvelopeData(payload=payload),
    ]
    stubs.pusher(iter(pushed), timeout=PATIENCE)

    received = []
    while len(received) < 2:
        received.extend(next(batches).payload)
    assert received == [payload, payload], received
    assert next(singles).payload == payload
    converted = next(v2).batch[0]
    assert (converted.source_id, converted.log.payload) == ("v1", b"hi"), converted
    assert converted.tags["origin"] == "o"

    # and a v2 log reaches the v1 subscribers
    stubs.send(batch(log("v1", b"from v2")), timeout=PATIENCE)
    assert b"from v2" in next(batches).payload[0]


def check_keepalive_pings_are_answered(stubs, new_stubs):
    # far more often than the reference would bear, without data
    stubs = new_stubs(
        ("grpc.keepalive_time_ms", 100),
        ("grpc.keepalive_timeout_ms", 5000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    )
    stream = open_stream(stubs.batched_receiver(logs_of("pings"), timeout=PATIENCE))
    time.sleep(2)
    stubs.send(batch(log("pings")), timeout=PATIENCE)
    assert len(next(stream).batch) == 1


def check_oversize_messages_end_their_stream_only(stubs, new_stubs):
    large = batch(log("large", b"x" * (TEN_MIB - 1024)))
    stubs.send(large, timeout=PATIENCE)
    stream = open_stream(stubs.batched_receiver(logs_of("after"), timeout=PATIENCE))
    too_large = batch(log("large", b"x" * TEN_MIB))
    for call in (
        lambda: stubs.send(too_large, timeout=PATIENCE),
        lambda: stubs.batch_sender(iter([too_large]), timeout=PATIENCE),
    ):
        assert status_of(call) == grpc.StatusCode.RESOURCE_EXHAUSTED
    stubs.send(batch(log("after")), timeout=PATIENCE)
    assert len(next(stream).batch) == 1


def check_malformed_messages_are_internal(stubs, new_stubs):
    channel_call = stubs.raw_send
    # a source id that is not UTF-8
    code = status_of(lambda: channel_call(b"\x0a\x04\x12\x02\xff\xfe", timeout=PATIENCE))
    assert code == grpc.StatusCode.INTERNAL, code


def check_cancel_and_deadline(stubs, new_stubs):
    cancelled = open_stream(stubs.batched_receiver(logs_of("cancel"), timeout=PATIENCE))
    threading.Timer(0.1, cancelled.cancel).start()
    assert status_of(lambda: next(cancelled)) == grpc.StatusCode.CANCELLED
    late = stubs.batched_receiver(logs_of("cancel"), timeout=0.2)
    assert status_of(lambda: next(late)) == grpc.StatusCode.DEADLINE_EXCEEDED


def check_unknown_methods_and_compression_are_unimplemented(stubs, new_stubs):
    call = lambda: stubs.nothing(batch(), timeout=PATIENCE)
    assert status_of(call) == grpc.StatusCode.UNIMPLEMENTED
    gzip = lambda: stubs.send(
        batch(log("gzip", b"x" * 10_000)),
        timeout=PATIENCE,
        compression=grpc.Compression.Gzip,
    )
    assert status_of(gzip) == grpc.StatusCode.UNIMPLEMENTED


def check_many_streams_on_one_connection(stubs, new_stubs):
    streams = [
        open_stream(stubs.batched_receiver(logs_of("many"), timeout=PATIENCE)) for _ in range(300)
    ]
    stubs.send(batch(log("many")), timeout=PATIENCE)
    for stream in streams:
        assert len(next(stream).batch) == 1
        stream.cancel()


def main():
    address, directory = sys.argv[1:]

    def new_stubs(*options):
        channel = connect(address, directory, *options)
        stubs = Stubs(channel)
        stubs.raw_send = channel.unary_unary("/loggregator.v2.Ingress/Send")
        return stubs

    checks = {
        name.removeprefix("check_").replace("_", " "): check
        for name, check in globals().items()
        if name.startswith("check_")
    }
    failed = 0
    for name, check in checks.items():
        try:
            check(new_stubs(), new_stubs)
            print(f"ok     {name}", flush=True)
        except Exception:
            failed += 1
            print(f"FAILED {name}\n{traceback.format_exc()}", flush=True)
    print(f"interop: {len(checks) - failed} passed, {failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
